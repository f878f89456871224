"""The ranking in parts: groups by number of devices, in them tiers of GPUs that are statistically tied.

Long rankings fold: of each tier only the best GPU is shown at first, and of each group only the first tiers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from app.services.compare.compare import figure_of
from app.wire.compare_form import Compared
from app.wire.rankings import RankBy

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
