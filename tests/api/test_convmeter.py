"""ConvMeter over HTTP: upload networks, retrain through the queue, predict networks by name and by figures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.config import Settings
from tests.service import Service

pytestmark = pytest.mark.slow

GPU = "rtx-3090"
# Seconds per FLOP, per output, per weight and once, of a training step three times as much; per device more.
COST = {"flops": 3e-14, "outputs": 3e-11, "weights": 2e-11}
ONCE_S, PER_DEVICE_S = 1e-3, 2e-3


@pytest.fixture(scope="module")
def settings(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """An installation that nothing ships with: made-up networks alone teach."""
    return replace(settings, shipped_dir=tmp_path_factory.mktemp("nothing"))


@pytest.fixture(scope="module")
def service(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(settings, tmp_path_factory.mktemp("service") / "log") as running:
        yield running


def networks() -> list[dict[str, Any]]:
    draw = np.random.default_rng(3)
    ends = {"flops": (1e9, 3e10), "outputs": (2e6, 4e7), "weights": (2e6, 1e8)}
    sizes = {name: np.rint(np.exp(draw.uniform(*np.log(span), 40))) for name, span in ends.items()}
    return [{"batch": 2.0 ** (k % 9), **{name: float(column[k]) for name, column in sizes.items()}} for k in range(40)]


def seconds(row: dict[str, Any], devices: int) -> float:
    times = 3.0 if row["pass"] == "step" else 1.0
    images = row["batch"] * (COST["flops"] * row["flops"] + COST["outputs"] * row["outputs"])
    exchange = PER_DEVICE_S * devices if devices > 1 else 0.0
    return float(times * (images + COST["weights"] * row["weights"] + ONCE_S) + exchange)


def measured() -> list[dict[str, Any]]:
    rows = []
    for what, counts in (("forward", (1,)), ("step", (1, 2, 4, 8))):
        for devices in counts:
            for network in networks():
                row = network | {"pass": what, "devices": devices}
                workload = {"kind": "operator", "op": "network", "dtype": "fp16", **row}
                about = {"gpu": GPU, "software": "pytorch-2.4.0", "source": "made up"}
                rows.append({**about, "latency_ms": 1e3 * seconds(row, devices), "workload": workload})
    return rows


def ask(service: Service, workload: dict[str, Any], **more: Any) -> Any:
    body = {"gpu": GPU, "predictor": "convmeter", "workload": workload} | more
    return service.client.post("/predict", json=body)


def network(**changes: Any) -> dict[str, Any]:
    row = {"op": "network", "batch": 32, "flops": 8e9, "outputs": 1.1e7, "weights": 2.5e7, "dtype": "fp16"}
    return {"kind": "operators", "operators": [row | changes]}


RESNET = {"kind": "model", "name": "resnet50", "mode": "inference", "batch": 32, "dtype": "fp16"}


def test_without_rows_the_error_names_the_import(service: Service) -> None:
    for refused in (service.client.post("/retrain", json={"predictor": "convmeter"}), ask(service, RESNET)):
        assert refused.status_code == 409
        assert "gpucast import timm DIR" in refused.json()["detail"]
    gemm = {"kind": "operator", "op": "linear", "m": 64, "n": 64, "k": 64, "dtype": "fp16"}
    row = {"gpu": GPU, "software": "pytorch-2.4.0", "source": "made up", "latency_ms": 1.0, "workload": gemm}
    service.client.post("/measurements", json=[row] * 1).raise_for_status()
    assert service.client.post("/retrain", json={"predictor": "convmeter"}).status_code == 409


def test_uploaded_networks_train_a_version(service: Service) -> None:
    taken = service.client.post("/measurements", json=measured()).raise_for_status().json()
    assert taken["inserted"] == 200
    for name in ("convmeter", "convmeter_ols"):
        job = service.client.post("/retrain", json={"predictor": name}).raise_for_status().json()
        job = service.wait_for_job(job["job_id"])
        assert (job["state"], job["served"], job["trained_on"]["rows"]) == ("succeeded", True, 200), job
        (card,) = [one for one in job["validation"] if one["gpu"] == GPU]
        assert (card["family"], card["split"]) == ("network/fp16", "configuration_held_out")
        assert card["mape"] < (1.0 if name == "convmeter" else 100.0)


@pytest.mark.parametrize("devices", [1, 8])
def test_a_network_is_predicted_from_its_figures(service: Service, devices: int) -> None:
    row = network(devices=devices, **{"pass": "step"})
    (found,) = ask(service, row).raise_for_status().json()["predictions"]
    assert found["latency_ms"] == pytest.approx(1e3 * seconds(row["operators"][0], devices), rel=0.01)
    assert found["predictor"] == {"name": "convmeter", "version": "1"}


def test_a_network_is_predicted_by_its_name(service: Service) -> None:
    (one,) = ask(service, RESNET).raise_for_status().json()["predictions"]
    # 4.09 G multiply-adds and 25.557 M parameters, as published; 11.1 M outputs of its convolutions.
    row = {"batch": 32, "flops": 8.18e9, "outputs": 1.111e7, "weights": 2.5557e7, "pass": "forward"}
    assert one["latency_ms"] == pytest.approx(1e3 * seconds(row, 1), rel=0.01)
    assert [share["group"] for share in one["breakdown"]] == ["network"]
    assert one["memory"]["required_bytes"] > 2 * 25_557_032
    training = RESNET | {"mode": "training", "dataset_size": 1_281_167}
    (step,) = ask(service, training).raise_for_status().json()["predictions"]
    assert step["latency_ms"] == pytest.approx(1e3 * seconds(row | {"pass": "step"}, 1), rel=0.01)
    # 1,281,167 images make 40,037 steps of 32.
    assert step["epoch_ms"] == pytest.approx(40_037 * step["latency_ms"])
    many = training | {"batch": 256, "parallelism": {"data": 8}}
    (wide,) = ask(service, many).raise_for_status().json()["predictions"]
    assert wide["latency_ms"] == pytest.approx(step["latency_ms"] + 1e3 * 8 * PER_DEVICE_S, rel=0.02)


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"parallelism": {"pipeline": 2, "microbatches": 4}}, ["workload", "parallelism", "pipeline"]),
        ({"mode": "training", "parallelism": {"data": 2, "zero": 2}}, ["workload", "parallelism", "zero"]),
        ({"mode": "training", "gradient_accumulation": 2}, ["workload", "gradient_accumulation"]),
    ],
)
def test_unsupported_run_configurations(service: Service, changes: dict[str, Any], place: list[str]) -> None:
    refused = ask(service, RESNET | changes)
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["loc"] == place


def test_networks_without_convolutions(service: Service) -> None:
    config = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 100, "n_positions": 64}
    workload = {"kind": "model", "config": config, "mode": "inference", "batch": 1, "sequence": 16, "dtype": "fp16"}
    refused = ask(service, workload)
    assert (refused.status_code, refused.json()["errors"][0]["loc"]) == (422, ["predictor"])
    phased = ask(service, network(phase="backward"))
    assert (phased.status_code, phased.json()["errors"][0]["loc"][-1]) == (422, "phase")
