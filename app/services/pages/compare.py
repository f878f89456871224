"""The comparison page: requests from addresses, and the figures of its chart and headline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from app.services.pages.address import Address
from app.wire.compare_form import Compared


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure to rank by: its label with the unit, its fields in a row, and the headline for the first GPU."""

    label: str
    unit: str
    value: str
    interval: str
    praise: str


# Sizes of a network that is not split; 1 for others.
_ALONE = {"zero": 0}
FIGURES: Mapping[str, Figure] = {
    "latency": Figure("Time, ms", "ms", "latency_ms", "interval_ms", "is the fastest"),
    "throughput": Figure(
        "Throughput, per s", "/s", "throughput_per_s", "throughput_interval_per_s", "has the highest throughput"
    ),
    "cost": Figure("Cost, USD", "USD", "cost_usd", "cost_interval_usd", "is the cheapest"),
    "energy": Figure("Energy, J", "J", "energy_j", "energy_interval_j", "uses the least energy"),
}


def compare_body(address: Address) -> dict[str, Any]:
    """Return the POST /compare request of an address. Raises BadInput that names unreadable controls."""
    common = address.common
    more: dict[str, Any] = {"rank_by": common.get("rank_by", "latency")}
    more |= {name: figures for name in ("prices", "powers") if (figures := address.figures(name))}
    if "powers" in more:
        more["powers_w"] = more.pop("powers")
    if "search_parallelism" in common:
        more["search_parallelism"] = True
    if "max_devices" in common:
        more["max_devices"] = address.number("max_devices")
    return address.body(**more)


def split_controls(row: Compared) -> dict[str, str]:
    """Return the controls that split a network as this row did; empty for sizes of 1."""
    split = msgspec.to_builtins(row.parallelism) or {}
    return {name: str(size) if size != _ALONE.get(name, 1) else "" for name, size in split.items()}


def with_figure(rows: list[Compared], figure: Figure) -> list[Compared]:
    """Return the rows that have the figure."""
    return [row for row in rows if getattr(row, figure.value) is not None]
