"""Figures of the ranking as people read them: milliseconds, tokens per second, dollars per million tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median

from app.dashboard.address import Address
from app.dashboard.format_figures import TIME_UNITS, decimals
from app.dashboard.typed_values import number_of
from app.services.models.network_kinds import network_kind
from app.wire.compare_form import Compared, CompareResponse
from app.wire.rankings import RankBy

_MILLION = 1e6
# What can be ranked by, in plain words.
RANK_LABELS: Mapping[str, str] = {"latency": "time", "throughput": "throughput", "cost": "cost", "energy": "energy"}


@dataclass(frozen=True, slots=True)
class Amount:
    """A figure with the ends of its interval, in the unit of its column."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Figure:
    """A column: its head with the unit, the unit after a value, its fields in a row, and the headline of the best.

    `scale` returns the factor from a row's field to the column's unit; `each` ends the headline: " per epoch".
    """

    head: str
    unit: str
    value: str
    interval: str
    praise: str
    scale: Callable[[Compared], float]
    each: str = ""

    def of(self, row: Compared) -> Amount | None:
        """Return a row's figure, or None where it has none."""
        value, ends = getattr(row, self.value), getattr(row, self.interval)
        if value is None or ends is None:
            return None
        factor = self.scale(row)
        return Amount(factor * value, factor * ends.low, factor * ends.high)


def figures_of(address: Address, answer: CompareResponse) -> Mapping[RankBy, Figure]:
    """Return the columns of a comparison, with units that suit its workload and its times."""
    unit, per_item = items_of(address)
    runs, each = _priced_runs(address)
    return {
        "latency": _time([row.latency_ms for row in answer.ranking]),
        "throughput": Figure(
            f"{unit}/s",
            f"{unit.lower()}/s",
            "throughput_per_s",
            "throughput_interval_per_s",
            "has the highest throughput",
            lambda row: per_item,
        ),
        "cost": Figure(
            f"USD {each or f'per 1M {unit.lower()}'}",
            "USD",
            "cost_usd",
            "cost_interval_usd",
            "is the cheapest",
            (lambda row: runs) if runs else (lambda row: _MILLION / _items_per_run(row, per_item)),
            f" {each or f'per million {unit.lower()}'}",
        ),
        "energy": Figure("Energy, J", "J", "energy_j", "energy_interval_j", "uses the least energy", lambda row: 1.0),
    }


def decimals_of(figures: Sequence[Figure], rows: Sequence[Compared]) -> list[int]:
    """Return the decimals of each column."""
    return [decimals(amount.value for row in rows if (amount := figure.of(row))) for figure in figures]


def _time(times_ms: Sequence[float]) -> Figure:
    """Return the column of times in the longest unit that half of them have one of."""
    middle = median(times_ms) if times_ms else 1.0
    unit = next((unit for unit, size in TIME_UNITS.items() if middle >= size), "µs")
    size = TIME_UNITS[unit]
    return Figure(f"Time, {unit}", unit, "latency_ms", "interval_ms", "is the fastest", lambda row: 1.0 / size)


def items_of(address: Address) -> tuple[str, float]:
    """Return what a workload's throughput counts, and how many of them a sequence has."""
    if address.kind == "graph":
        return "Samples", 1.0
    if address.kind != "model":
        return "Runs", 1.0
    kind, tokens = network_kind(address.typed.get("name", "")), _number(address, "sequence")
    if tokens is None or (kind is not None and kind.images):
        return "Images", 1.0
    return "Tokens", 1.0 if address.typed.get("mode") == "decode" else tokens


def _priced_runs(address: Address) -> tuple[float, str]:
    """Return how many steps of training a price is of, and their name; 0 where it is of tokens, images or runs."""
    if address.typed.get("mode") != "training":
        return 0.0, ""
    samples, batch = _number(address, "dataset_size"), _number(address, "batch") or 1.0
    return (1e3, "per 1,000 steps") if samples is None else (float(ceil(samples / batch)), "per epoch")


def _number(address: Address, name: str) -> float | None:
    """Return the number typed into a control; None without one."""
    value = number_of(address.typed.get(name, ""))
    return None if isinstance(value, str) else float(value)


def _items_per_run(row: Compared, per_item: float) -> float:
    """Return how many tokens, images or runs one run has."""
    return (row.throughput_per_s or 0.0) * row.latency_ms / 1e3 * per_item or 1.0
