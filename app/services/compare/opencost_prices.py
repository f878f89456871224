"""Prices of one device per hour from OpenCost's answer to GET /assets: what nodes with GPUs cost.

A node's whole cost (processors, memory and GPUs, with discounts) is divided by the hours of its GPUs. Its labels name
the GPU; without them its instance type does, if SkyPilot's catalogue says what that has. The answer names no currency:
OpenCost's default is the US dollar.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from typing import Any

from app.engine.gpu_types import CLOUD_LABELS, GPU_LABELS, gpu_of_type
from app.errors import BadInput, NotFound
from app.services.compare.price_catalogues import Asked, Instance, Offers, cheapest, offer
from app.tables.catalog import Catalog

OPENCOST = "OpenCost"
_HOUR_MINUTES = 60.0
_REGION = ("topology_kubernetes_io_region", "failure_domain_beta_kubernetes_io_region")


def read_assets(body: bytes) -> list[dict[str, Any]] | None:
    """Return the assets of an answer of OpenCost; None for another file."""
    try:
        answer = json.loads(body)
    except ValueError:
        return None
    data = answer.get("data") if isinstance(answer, dict) else None
    sets = [one for one in (data if isinstance(data, list) else [data]) if isinstance(one, dict)]
    return [asset for one in sets for asset in one.values() if isinstance(asset, dict)] if sets else None


def opencost_offers(
    assets: Sequence[Mapping[str, Any]], asked: Asked, instances: Mapping[str, Instance], catalog: Catalog
) -> Offers:
    """Return the prices of nodes with GPUs; `instances` are those of SkyPilot's catalogue, by type.

    Raises BadInput for an asset whose figures are none, and for assets that are aggregated.
    """
    left_out: Counter[str] = Counter()
    return Offers(cheapest(_offers(assets, asked, instances, catalog, left_out)), left_out)


def _offers(
    assets: Iterable[Mapping[str, Any]],
    asked: Asked,
    instances: Mapping[str, Instance],
    catalog: Catalog,
    left_out: Counter[str],
) -> Iterator[dict[str, Any]]:
    for asset in assets:
        hours, spot = _gpu_hours(asset), _number(asset, "preemptible") > 0
        labels = _labels(asset)
        if asset.get("type") != "Node" or not hours:
            left_out["no node with GPUs"] += 1
        elif spot != asked.spot:
            left_out["interruptible" if spot else "not interruptible"] += 1
        elif (price := _number(asset, "totalCost") / hours) <= 0:
            left_out["no cost"] += 1
        elif (gpu := _gpu(asset, labels, instances, catalog)) is None:
            left_out[f"no label names a known GPU of a {asset.get('nodeType') or 'node'}"] += 1
        else:
            here = asked._replace(
                provider=asked.provider or str((asset.get("properties") or {}).get("provider", "")), day=_day(asset)
            )
            region = next((labels[name] for name in _REGION if name in labels), "")
            yield offer(Instance(gpu, 1.0), price, here, region, OPENCOST)


def _gpu_hours(asset: Mapping[str, Any]) -> float:
    """Return the hours of a node's GPUs; older versions have their number only."""
    return _number(asset, "GPUHours") or _number(asset, "gpuCount") * _number(asset, "minutes") / _HOUR_MINUTES


def _number(asset: Mapping[str, Any], name: str) -> float:
    value = asset.get(name, 0.0)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadInput(f"{name} of an asset of OpenCost must be a number, got {str(value)[:40]!r}.")
    return float(value)


def _labels(asset: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels by their names as Prometheus writes them, which OpenCost does too."""
    labels = asset.get("labels") or {}
    return {_plain(name).removeprefix("label_"): str(value) for name, value in labels.items()}


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "_", name.lower())


def _gpu(
    asset: Mapping[str, Any], labels: Mapping[str, str], instances: Mapping[str, Instance], catalog: Catalog
) -> str | None:
    for name in map(_plain, (*GPU_LABELS, *CLOUD_LABELS)):
        if name in labels:
            try:
                return gpu_of_type(labels[name], {}, catalog, kind="").gpu
            except NotFound:
                continue
    known = instances.get(str(asset.get("nodeType", "")))
    return None if known is None else known.gpu


def _day(asset: Mapping[str, Any]) -> date:
    text = str(asset.get("start", ""))
    try:
        return date.fromisoformat(text[:10])
    except ValueError:
        raise BadInput(f"start of an asset of OpenCost must be a date like 2026-11-01, got {text[:40]!r}.") from None
