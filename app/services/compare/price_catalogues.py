"""Prices of one device per hour from the files of other tools, found by their columns.

SkyPilot's catalogue (vms.csv) and gpuhunt's list instances with their accelerators; FOCUS 1.2 is a provider's bill with
contracted prices, whose instances are looked up in such a catalogue. An instance's price is divided by its devices. Of
a GPU at a provider in a region the cheapest instance counts.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from typing import Any, NamedTuple

from app.engine.gpu_types import usual_gpu
from app.errors import BadInput

SKYPILOT, GPUHUNT, FOCUS = "SkyPilot's catalogue", "gpuhunt", "FOCUS"
_COLUMNS = {
    SKYPILOT: {"InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "Region"},
    GPUHUNT: {"instance_name", "location", "price", "gpu_count", "gpu_name", "gpu_memory", "spot"},
    FOCUS: {"BillingCurrency", "ContractedUnitPrice", "PricingUnit", "SkuPriceDetails", "ChargePeriodStart"},
}
# A unit of time that a price is for: "Hours", "1 Hour", "100 Hrs".
_HOURS = re.compile(r"^\s*(\d+(?:\.\d+)?)?\s*h(?:ou)?rs?\s*$", re.IGNORECASE)
_MIB_PER_GB = 1024.0


class Asked(NamedTuple):
    """What a catalogue does not say: provider and day; and whether interruptible instances are asked for."""

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


def read_offers(body: bytes, tool: str, asked: Asked, instances: Mapping[str, Instance]) -> Offers:
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
        found = _focus(_lines(body), instances, left_out)
    else:
        found = read[tool](_lines(body), asked, left_out)
    return Offers(cheapest(found), left_out)


def cheapest(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the row that counts for each GPU at a provider in a region."""
    best: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in rows:
        key = row["gpu"], row["provider"], row["region"]
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
    found = ((row, _accelerators(row)) for row in _lines(body))
    return {row["InstanceType"]: one for row, one in found if isinstance(one, Instance)}


def _lines(body: bytes) -> Iterator[dict[str, str]]:
    for row in csv.DictReader(io.StringIO(body.decode("utf-8-sig", "replace"))):
        yield {name: (value or "").strip() for name, value in row.items() if isinstance(name, str)}


def _skypilot(rows: Iterable[dict[str, str]], asked: Asked, left_out: Counter[str]) -> Iterator[dict[str, Any]]:
    for row in rows:
        found, price = _accelerators(row), _number(row.get("SpotPrice" if asked.spot else "Price", ""))
        if isinstance(found, str):
            left_out[found] += 1
        elif not price:
            left_out["no price of this kind"] += 1
        else:
            yield offer(found, price, asked, row["Region"], SKYPILOT)


def _accelerators(row: Mapping[str, str]) -> Instance | str:
    """Return the devices of a row of SkyPilot's catalogue, or why it has none that is known."""
    name, count = row["AcceleratorName"], _number(row["AcceleratorCount"])
    if not name or not count:
        return "no accelerator"
    memory = re.search(r"SizeInMiB'?\"?:\s*(\d+)", row.get("GpuInfo", ""))
    gpu = usual_gpu(name, float(memory[1]) / _MIB_PER_GB if memory else None)
    return f"accelerator {name} is not in the catalogue" if gpu is None else Instance(gpu, count)


def _gpuhunt(rows: Iterable[dict[str, str]], asked: Asked, left_out: Counter[str]) -> Iterator[dict[str, Any]]:
    for row in rows:
        count, price = _number(row["gpu_count"]), _number(row["price"])
        gpu = usual_gpu(row["gpu_name"], _number(row["gpu_memory"])) if row["gpu_name"] else None
        if (row["spot"].lower() == "true") != asked.spot:
            left_out["interruptible" if not asked.spot else "not interruptible"] += 1
        elif not count or not row["gpu_name"]:
            left_out["no accelerator"] += 1
        elif gpu is None:
            left_out[f"accelerator {row['gpu_name']} is not in the catalogue"] += 1
        elif not price:
            left_out["no price of this kind"] += 1
        else:
            here = asked._replace(provider=row.get("provider") or asked.provider)
            yield offer(Instance(gpu, count), price, here, row["location"], GPUHUNT)


def _focus(
    rows: Iterable[dict[str, str]], instances: Mapping[str, Instance], left_out: Counter[str]
) -> Iterator[dict[str, Any]]:
    for row in rows:
        currency = row.get("PricingCurrency") or row["BillingCurrency"]
        unit, price = _HOURS.match(row["PricingUnit"]), _number(row["ContractedUnitPrice"])
        found = instances.get(_instance_type(row))
        if row.get("ChargeCategory", "Usage") != "Usage" or unit is None or not price:
            left_out["no use of an instance by the hour"] += 1
        elif found is None:
            left_out["an instance without known accelerators"] += 1
        elif currency != "USD":
            raise BadInput(f"A price is in {currency}: prices are in US dollars, and currencies are never converted.")
        else:
            asked = Asked(row.get("ProviderName", ""), _day(row["ChargePeriodStart"]), spot=False)
            yield offer(found, price / float(unit[1] or 1.0), asked, row.get("RegionId", ""), FOCUS)


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text[:10])
    except ValueError:
        raise BadInput(f"ChargePeriodStart {text[:40]!r} is no date like 2026-11-01.") from None


def _instance_type(row: Mapping[str, str]) -> str:
    try:
        details = json.loads(row["SkuPriceDetails"] or "{}")
    except ValueError:
        return ""
    return str(details.get("InstanceType", "")) if isinstance(details, dict) else ""


def offer(found: Instance, price: float, asked: Asked, region: str, tool: str) -> dict[str, Any]:
    """Return the row of an instance's price per hour, divided by its devices."""
    kind = " (interruptible)" if asked.spot else ""
    return {
        "gpu": found.gpu,
        "usd_per_hour": round(price / found.devices, 6),
        "source": tool,
        "date": asked.day.isoformat(),
        "provider": f"{asked.provider or 'unknown'}{kind}",
        "region": region or None,
    }


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
