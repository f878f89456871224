"""The ranking in parts and figures: groups by number of devices, in them tiers of GPUs that are statistically tied.

Long rankings fold: of each tier only the best GPU is shown at first, and of each group only the first tiers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import ceil
from statistics import median

import msgspec

from app.dashboard.address import Address
from app.dashboard.format_figures import TIME_UNITS, decimals
from app.dashboard.forms import number_of
from app.services.compare.compare import figure_of
from app.services.models.network_kinds import network_kind
from app.wire.compare_form import Compared, CompareResponse, RankBy

# Rankings of at most this many GPUs are shown whole; of longer ones, this many tiers of a group, and GPUs that lack
# memory.
MOST_SHOWN, MOST_TIERS, MOST_SHORT = 16, 8, 2
_UNKNOWN = {"cost": "No price is known", "energy": "No power is known", "throughput": "Takes no time"}


@dataclass(frozen=True, slots=True)
class Place:
    """A row with its place in the group: `2-4` if GPUs at these places are statistically tied."""

    places: str
    first: int
    row: Compared


@dataclass(frozen=True, slots=True)
class Block:
    """Rows that are always shown, and rows behind a switch with this label."""

    shown: Sequence[Place]
    folded: Sequence[Place] = ()
    label: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that run in one way: on one GPU, split over eight, or not at all."""

    title: str
    runs: bool
    blocks: Sequence[Block]

    @property
    def best(self) -> Compared:
        """The first row."""
        return (self.blocks[0].shown or self.blocks[0].folded)[0].row


def groups_of(ranking: Sequence[Compared], rank_by: RankBy) -> list[Group]:
    """Return the groups of a ranking: those that fit first, of these the ones with fewer devices."""

    def key(row: Compared) -> tuple[bool, bool, int]:
        unknown = figure_of(row, rank_by)[0] is None
        fits = row.memory.fits
        return not fits, unknown, row.devices if fits and not unknown else 0

    fold = len(ranking) > MOST_SHOWN
    return [
        _group(list(rows), title=_title(key, rank_by), runs=not key[0], fold=fold, tied=key[2] > 0)
        for key, rows in groupby(sorted(ranking, key=key), key)
    ]


def _title(key: tuple[bool, bool, int], rank_by: RankBy) -> str:
    short, unknown, devices = key
    if short:
        return "Too little memory"
    if unknown:
        return _UNKNOWN[rank_by]
    return "On one GPU" if devices == 1 else f"Split over {devices} GPUs"


def _group(rows: list[Compared], *, title: str, runs: bool, fold: bool, tied: bool) -> Group:
    tiers = _tiers(rows) if tied else [[Place(str(k), k, row)] for k, row in enumerate(rows, 1)]
    if not fold:
        return Group(title, runs, [Block(tier) for tier in tiers])
    most = MOST_TIERS if runs else MOST_SHORT
    blocks = [_folded(tier) for tier in tiers[:most]]
    rest = [place for tier in tiers[most:] for place in tier]
    if rest:
        blocks.append(Block((), rest, f"{len(rest)} more"))
    return Group(title, runs, blocks)


def _folded(tier: list[Place]) -> Block:
    more = len(tier) - 1
    return Block(tier[:1], tier[1:], f"{more} more, statistically tied with the one above" if more else "")


def _tiers(rows: Sequence[Compared]) -> list[list[Place]]:
    """Return the rows in runs of those that are tied with the first of their run."""
    runs: list[list[Compared]] = []
    for row in rows:
        if runs and row.gpu in runs[-1][0].indistinguishable_from:
            runs[-1].append(row)
        else:
            runs.append([row])
    tiers, first = [], 1
    for run in runs:
        last = first + len(run) - 1
        places = str(first) if last == first else f"{first}\N{EN DASH}{last}"
        tiers.append([Place(places, first + k, row) for k, row in enumerate(run)])
        first = last + 1
    return tiers


# Sizes of a network that is not split; 1 for others.
_ALONE = {"zero": 0}


def split_controls(row: Compared) -> dict[str, str]:
    """Return the controls that split a network as this row did; empty for sizes of 1."""
    split = msgspec.to_builtins(row.parallelism) or {}
    return {name: str(size) if size != _ALONE.get(name, 1) else "" for name, size in split.items()}


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
    return (row.throughput_per_s or 0.0) * row.latency_ms / 1e3 * per_item or 1.0
