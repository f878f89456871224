"""The comparison page: which figure its chart and its first sentence are about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from app.services.pages.asked import Asked
from app.wire.compare_form import Compared


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure to rank by: its label with the unit, its fields in a row, and what is said of the first."""

    label: str
    unit: str
    value: str
    interval: str
    praise: str


# What a network that is not split says of itself; of all else 1.
_ALONE = {"zero": 0}
FIGURES: Mapping[str, Figure] = {
    "latency": Figure("Time, ms", "ms", "latency_ms", "interval_ms", "is the fastest"),
    "throughput": Figure(
        "Throughput, per s", "/s", "throughput_per_s", "throughput_interval_per_s", "gets the most done"
    ),
    "cost": Figure("Cost, USD", "USD", "cost_usd", "cost_interval_usd", "is the cheapest"),
    "energy": Figure("Energy, J", "J", "energy_j", "energy_interval_j", "takes the least energy"),
}


def body_of(asked: Asked) -> dict[str, Any]:
    """The request of POST /compare that an address stands for; BadInput names the control that cannot be read."""
    common = asked.common
    more: dict[str, Any] = {"rank_by": common.get("rank_by", "latency")}
    more |= {name: figures for name in ("prices", "powers") if (figures := asked.figures(name))}
    if "powers" in more:
        more["powers_w"] = more.pop("powers")
    if "search_parallelism" in common:
        more["search_parallelism"] = True
    if "max_devices" in common:
        more["max_devices"] = asked.number("max_devices")
    return asked.body(**more)


def split_of(row: Compared) -> dict[str, str]:
    """Controls that split a network as this row did, whatever the address asked for; empty where one is not needed."""
    found = msgspec.to_builtins(row.parallelism) or {}
    return {name: str(size) if size != _ALONE.get(name, 1) else "" for name, size in found.items()}


def known(rows: list[Compared], figure: Figure) -> list[Compared]:
    """The rows that have the figure."""
    return [row for row in rows if getattr(row, figure.value) is not None]
