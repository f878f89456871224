"""Prices from OpenCost's assets."""

from __future__ import annotations

import json
from datetime import date
from typing import Any

import pytest

from app.engine.catalogue import load_seed_specs
from app.errors import BadInput
from app.services.compare.price_catalogues import Instance, Terms, opencost_offers, read_assets
from app.tables.catalog import Catalog

ASKED = Terms("", date(2026, 11, 20), spot=False)
CATALOG = Catalog(load_seed_specs())


def node(cost: float, gpus: float, labels: dict[str, str], **more: Any) -> dict[str, Any]:
    """A node of a day, as OpenCost writes it."""
    return {
        "type": "Node", "properties": {"category": "Compute", "provider": "GCP", "cluster": "one", "name": "n"},
        "labels": {"label_topology_kubernetes_io_region": "europe-west4", **labels},
        "window": {"start": "2026-11-10T00:00:00Z", "end": "2026-11-11T00:00:00Z"}, "start": "2026-11-10T00:00:00Z",
        "end": "2026-11-11T00:00:00Z", "minutes": 1440.0, "nodeType": "a2-highgpu-8g", "cpuCores": 96, "ramBytes": 7e11,
        "GPUHours": 24.0 * gpus, "preemptible": 0, "discount": 0.3, "cpuCost": 0.2 * cost, "gpuCost": 0.7 * cost,
        "gpuCount": gpus, "ramCost": 0.1 * cost, "adjustment": 0, "totalCost": cost,
    } | more  # fmt: skip


A100 = {"nvidia_com_gpu_product": "NVIDIA-A100-SXM4-40GB"}
T4 = {"label_cloud_google_com_gke_accelerator": "nvidia-tesla-t4"}
DISK = {"type": "Disk", "totalCost": 1.0, "minutes": 1440, "start": "2026-11-10T00:00:00Z"}


def body(*assets: dict[str, Any]) -> bytes:
    return json.dumps({"code": 200, "data": [{str(k): asset for k, asset in enumerate(assets)}]}).encode()


def offers(*assets: dict[str, Any], **asked: Any) -> Any:
    found = read_assets(body(*assets))
    assert found is not None
    return opencost_offers(found, ASKED._replace(**asked), {"p5.48xlarge": Instance("h100-sxm5-80gb", 8.0)}, CATALOG)


def test_a_nodes_cost_is_divided_by_the_hours_of_its_gpus() -> None:
    found = offers(
        node(528.0, 8, A100),
        node(600.0, 8, A100),  # dearer on the same day
        node(9.6, 1, T4, GPUHours=0, minutes=720.0),  # half a day, in a version without GPUHours
        node(480.0, 8, {}, nodeType="p5.48xlarge"),
        node(20.0, 0, {}),
        node(20.0, 1, {"nvidia_com_gpu_product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"}),
        node(100.0, 8, A100, preemptible=1),
        DISK,
    )
    assert [(row["gpu"], row["usd_per_hour"], row["region"]) for row in found.rows] == [
        ("a100-sxm4-40gb", 2.75, "europe-west4"),
        ("tesla-t4", 0.8, "europe-west4"),
        ("h100-sxm5-80gb", 2.5, "europe-west4"),
    ]
    assert {(row["source"], row["date"], row["provider"]) for row in found.rows} == {("OpenCost", "2026-11-10", "GCP")}
    assert found.left_out == {
        "no node with GPUs": 2,
        "interruptible": 1,
        "no label names a known GPU of a a2-highgpu-8g": 1,
    }
    (spot,) = offers(node(96.0, 8, A100, preemptible=1), spot=True, provider="mine").rows
    assert (spot["usd_per_hour"], spot["provider"], spot["term"]) == (0.5, "mine", "spot")


def test_other_files_are_not_opencosts() -> None:
    assert read_assets(b"gpu,usd_per_hour\n") is None and read_assets(b"[]") is None and read_assets(b"{}") is None
    assert read_assets(b'{"data": [1]}') is None
    assert read_assets(b'{"code": 200, "data": {"a": {"type": "Node"}}}') == [{"type": "Node"}]


@pytest.mark.parametrize(
    ("change", "words"),
    [({"totalCost": "many"}, "totalCost .* must be a number, got 'many'"), ({"start": "now"}, "start .* got 'now'")],
)
def test_wrong_figures_are_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        offers(node(1.0, 1, A100, **change))
