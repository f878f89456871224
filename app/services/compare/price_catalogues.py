"""Prices of one device per hour from the files of other tools, recognised by their columns.

SkyPilot's catalogue (vms.csv) and gpuhunt's list instances with their accelerators; FOCUS 1.2 is a provider's bill with
contracted prices, whose instances are looked up in such a catalogue. An instance's price is divided by its devices. Of
a GPU at a provider in a region the cheapest instance counts.

OpenCost's answer to GET /assets has what nodes with GPUs cost. A node's whole cost (processors, memory and GPUs, with
discounts) is divided by the hours of its GPUs. Its labels name the GPU; without them its instance type does, if
SkyPilot's catalogue has that. The answer names no currency: OpenCost's default is the US dollar.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from typing import Any, NamedTuple

from app.engine.gpu_types import CLOUD_LABELS, GPU_LABELS, gpu_of_type, usual_gpu
from app.engine.prices import ON_DEMAND, listed_prices
from app.errors import BadInput, NotFound
from app.tables.catalog import Catalog

SKYPILOT, GPUHUNT, FOCUS = "SkyPilot's catalogue", "gpuhunt", "FOCUS"
_COLUMNS = {
    SKYPILOT: {"InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "Region"},
    GPUHUNT: {"instance_name", "location", "price", "gpu_count", "gpu_name", "gpu_memory", "spot"},
    FOCUS: {"BillingCurrency", "ContractedUnitPrice", "PricingUnit", "SkuPriceDetails", "ChargePeriodStart"},
}
_GPUHUNT_FIELDS = ("provider", *sorted(_COLUMNS[GPUHUNT]))
# A unit of time that a price is for: "Hours", "1 Hour", "100 Hrs".
_HOURS = re.compile(r"^\s*(\d+(?:\.\d+)?)?\s*h(?:ou)?rs?\s*$", re.IGNORECASE)
_MIB_PER_GB = 1024.0


class Terms(NamedTuple):
    """Provider and day, which a catalogue lacks, and whether prices are those of interruptible instances."""

    provider: str
    day: date
    spot: bool


class Instance(NamedTuple):
    """What an instance type has: its devices, by GPU id and number."""

    gpu: str
    devices: float


class Offers(NamedTuple):
    """Prices as rows of an import (`PriceIn`), and the reasons for which others were left out, with their number."""

    rows: list[dict[str, Any]]
    left_out: Counter[str]


def format_of(body: bytes) -> str | None:
    """Return the tool whose columns a CSV file has; None for our own."""
    header = {name.strip() for name in body.partition(b"\n")[0].decode("utf-8-sig", "replace").split(",")}
    header = {name.strip('"') for name in header}
    return next((tool for tool, columns in _COLUMNS.items() if columns <= header), None)


def read_offers(body: bytes, tool: str, terms: Terms, instances: Mapping[str, Instance]) -> Offers:
    """Return the prices of a file of `tool`; `instances` are those of a bill (`read_instances`).

    Raises BadInput for another currency than US dollars, and for a bill without its instances.
    """
    left_out: Counter[str] = Counter()
    read = {SKYPILOT: _skypilot, GPUHUNT: _gpuhunt}
    if tool == FOCUS:
        if not instances:
            raise BadInput(
                "A bill names instance types only: send --instances with SkyPilot's vms.csv of the provider."
            )
        rows = _focus(_lines(body), instances, left_out)
    else:
        rows = read[tool](_lines(body), terms, left_out)
    return Offers(cheapest(rows), left_out)


def cheapest(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the row that counts for each GPU at a provider in a region."""
    best: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in rows:
        key = row["gpu"], row["provider"], row["region"], row["term"]
        if key not in best or _rank(row) > _rank(best[key]):
            best[key] = row
    return list(best.values())


def _rank(row: Mapping[str, Any]) -> tuple[str, float]:
    """Return the key by which the newest price wins, and of a day's the cheapest."""
    return row["date"], -row["usd_per_hour"]


def read_instances(body: bytes) -> dict[str, Instance]:
    """Return the accelerators of each instance type of SkyPilot's catalogue. Raises BadInput for another file."""
    if format_of(body) != SKYPILOT:
        raise BadInput("--instances: send SkyPilot's catalogue, a vms.csv with InstanceType and AcceleratorName.")
    listed = ((row, _accelerators(row)) for row in _lines(body))
    return {row["InstanceType"]: instance for row, instance in listed if isinstance(instance, Instance)}


def _lines(body: bytes) -> Iterator[dict[str, str]]:
    for row in csv.DictReader(io.StringIO(body.decode("utf-8-sig", "replace"))):
        yield {name: (value or "").strip() for name, value in row.items() if isinstance(name, str)}


def _skypilot(rows: Iterable[dict[str, str]], terms: Terms, left_out: Counter[str]) -> Iterator[dict[str, Any]]:
    for row in rows:
        instance, price = _accelerators(row), _number(row.get("SpotPrice" if terms.spot else "Price", ""))
        if isinstance(instance, str):
            left_out[instance] += 1
        elif not price:
            left_out["no price of this kind"] += 1
        else:
            yield offer(instance, price, terms, row["Region"], SKYPILOT)


def _accelerators(row: Mapping[str, str]) -> Instance | str:
    """Return the devices of a row of SkyPilot's catalogue, or why it has none that is known."""
    name, count = row["AcceleratorName"], _number(row["AcceleratorCount"])
    if not name or not count:
        return "no accelerator"
    memory = re.search(r"SizeInMiB'?\"?:\s*(\d+)", row.get("GpuInfo", ""))
    gpu = usual_gpu(name, float(memory[1]) / _MIB_PER_GB if memory else None)
    return f"accelerator {name} is not in the catalogue" if gpu is None else Instance(gpu, count)


def _gpuhunt(rows: Iterable[dict[str, str]], terms: Terms, left_out: Counter[str]) -> Iterator[dict[str, Any]]:
    for row in rows:
        count, price = _number(row["gpu_count"]), _number(row["price"])
        gpu = usual_gpu(row["gpu_name"], _number(row["gpu_memory"])) if row["gpu_name"] else None
        if (row["spot"].lower() == "true") != terms.spot:
            left_out["interruptible" if not terms.spot else "not interruptible"] += 1
        elif not count or not row["gpu_name"]:
            left_out["no accelerator"] += 1
        elif gpu is None:
            left_out[f"accelerator {row['gpu_name']} is not in the catalogue"] += 1
        elif not price:
            left_out["no price of this kind"] += 1
        else:
            here = terms._replace(provider=row.get("provider") or terms.provider)
            yield offer(Instance(gpu, count), price, here, row["location"], GPUHUNT)


def _focus(
    rows: Iterable[dict[str, str]], instances: Mapping[str, Instance], left_out: Counter[str]
) -> Iterator[dict[str, Any]]:
    for row in rows:
        currency = row.get("PricingCurrency") or row["BillingCurrency"]
        unit, price = _HOURS.match(row["PricingUnit"]), _number(row["ContractedUnitPrice"])
        instance = instances.get(_instance_type(row))
        if row.get("ChargeCategory", "Usage") != "Usage" or unit is None or not price:
            left_out["no use of an instance by the hour"] += 1
        elif instance is None:
            left_out["an instance without known accelerators"] += 1
        elif currency != "USD":
            raise BadInput(f"A price is in {currency}: prices are in US dollars, and currencies are never converted.")
        else:
            start = row["ChargePeriodStart"]
            day = _day(start, f"ChargePeriodStart {start[:40]!r} is no date like 2026-11-01.")
            terms = Terms(row.get("ProviderName", ""), day, spot=False)
            yield offer(instance, price / float(unit[1] or 1.0), terms, row.get("RegionId", ""), FOCUS)


def _day(text: str, wrong: str) -> date:
    """Return the day of a time. Raises BadInput with the message `wrong`."""
    try:
        return date.fromisoformat(text[:10])
    except ValueError:
        raise BadInput(wrong) from None


def _instance_type(row: Mapping[str, str]) -> str:
    try:
        details = json.loads(row["SkuPriceDetails"] or "{}")
    except ValueError:
        return ""
    return str(details.get("InstanceType", "")) if isinstance(details, dict) else ""


def offer(instance: Instance, price: float, terms: Terms, region: str, tool: str) -> dict[str, Any]:
    """Return the row of an instance's price per hour, divided by its devices."""
    return {
        "gpu": instance.gpu,
        "usd_per_hour": round(price / instance.devices, 6),
        "source": tool,
        "date": terms.day.isoformat(),
        "provider": terms.provider or "unknown",
        "region": region or None,
        "term": "spot" if terms.spot else ON_DEMAND,
        "devices": max(round(instance.devices), 1),
    }


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def read_lists(body: bytes) -> list[dict[str, Any]] | None:
    """Return the prices of a list in the form of the one that ships (seed_data/prices.json); None for another file."""
    try:
        lists = json.loads(body)["lists"]
        prices = listed_prices(lists)
    except (ValueError, KeyError, TypeError):
        return None
    return cheapest(
        {
            "gpu": price.gpu_id,
            "usd_per_hour": price.usd_per_hour,
            "source": price.source,
            "date": price.dated.isoformat(),
            "provider": price.provider,
            "region": price.region or None,
            "term": price.term,
            "devices": price.devices,
        }
        for price in prices
    )


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
    assets: Sequence[Mapping[str, Any]], terms: Terms, instances: Mapping[str, Instance], catalog: Catalog
) -> Offers:
    """Return the prices of nodes with GPUs; `instances` are those of SkyPilot's catalogue, by type.

    Raises BadInput for an asset whose figures are none, and for assets that are aggregated.
    """
    left_out: Counter[str] = Counter()
    return Offers(cheapest(_offers(assets, terms, instances, catalog, left_out)), left_out)


def _offers(
    assets: Iterable[Mapping[str, Any]],
    terms: Terms,
    instances: Mapping[str, Instance],
    catalog: Catalog,
    left_out: Counter[str],
) -> Iterator[dict[str, Any]]:
    for asset in assets:
        hours, spot = _gpu_hours(asset), _asset_number(asset, "preemptible") > 0
        labels = _labels(asset)
        if asset.get("type") != "Node" or not hours:
            left_out["no node with GPUs"] += 1
        elif spot != terms.spot:
            left_out["interruptible" if spot else "not interruptible"] += 1
        elif (price := _asset_number(asset, "totalCost") / hours) <= 0:
            left_out["no cost"] += 1
        elif (gpu := _gpu(asset, labels, instances, catalog)) is None:
            left_out[f"no label names a known GPU of a {asset.get('nodeType') or 'node'}"] += 1
        else:
            start, provider = str(asset.get("start", "")), str((asset.get("properties") or {}).get("provider", ""))
            wrong = f"start of an asset of OpenCost must be a date like 2026-11-01, got {start[:40]!r}."
            here = terms._replace(provider=terms.provider or provider, day=_day(start, wrong))
            region = next((labels[name] for name in _REGION if name in labels), "")
            yield offer(Instance(gpu, 1.0), price, here, region, OPENCOST)


def _gpu_hours(asset: Mapping[str, Any]) -> float:
    """Return the hours of a node's GPUs; older versions have their number only."""
    return (
        _asset_number(asset, "GPUHours")
        or _asset_number(asset, "gpuCount") * _asset_number(asset, "minutes") / _HOUR_MINUTES
    )


def _asset_number(asset: Mapping[str, Any], name: str) -> float:
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


def published_catalogue() -> bytes:
    """Return today's instances with GPUs of all providers. Raises BadInput without the package or an answer."""
    try:
        from gpuhunt import Catalog  # noqa: PLC0415 - an extra
    except ImportError:
        raise BadInput(
            "--gpuhunt needs the package gpuhunt: install it beside gpucast (pip install gpuhunt), or give a FILE."
        ) from None
    logging.getLogger("gpuhunt").setLevel(logging.CRITICAL)  # a provider without an answer is a line, not a traceback
    catalog = Catalog(balance_resources=False, auto_reload=False)
    try:
        catalog.load()
        instances = catalog.query(min_gpu_count=1)
    except Exception as error:  # the package has errors of its own, of HTTP, of ZIP files and of CSV
        raise BadInput(f"gpuhunt's catalogue cannot be fetched: {error}. Is there a network?") from None
    text = io.StringIO()
    writer = csv.DictWriter(text, _GPUHUNT_FIELDS)
    writer.writeheader()
    writer.writerows({name: getattr(item, name) for name in _GPUHUNT_FIELDS} for item in instances)
    return text.getvalue().encode()
