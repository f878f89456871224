"""Measured rows that a version was not trained on, by operator and GPU, and the corrections fitted to them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from app.engine.measurement_tables import identity_words, to_runs
from app.store.operator_blocks import OperatorBlock, concatenate
from app.tables.arrays import Bytes
from app.tables.gpus import GpuTable
from app.tables.measurements import OperatorRuns
from app.training.operator_start import KeySet, any_holds

# Rows per operator, dtype and GPU that a served version is corrected with. More rows call for a retraining.
MOST_ROWS = 256

# Name of an operator, id of a GPU.
GroupKey = tuple[str, str]
Part = tuple[OperatorBlock, Bytes]


@dataclass(frozen=True, eq=False, slots=True)
class Group:
    """Rows of one operator on one GPU, at most MOST_ROWS per dtype: blocks, and the identities of their rows [n, 16].

    Groups are compared as objects: one that gained a row is another group.
    """

    parts: tuple[Part, ...] = ()

    def runs(self, gpus: GpuTable) -> list[OperatorRuns]:
        """Return the rows, one table per dtype."""
        return to_runs(self.parts, gpus)

    def dtypes(self) -> set[str]:
        """Return the dtypes of the rows."""
        return {block.contexts[0].dtype for block, _ in self.parts}

    def holds_same_rows(self, other: Group) -> bool:
        """Return whether the other group has the same rows, in any order."""
        return self._identities() == other._identities()

    def _identities(self) -> set[bytes]:
        return {row.tobytes() for _, ids in self.parts for row in ids}

    def joined(self, parts: Iterable[Part]) -> Group:
        """Return the group with these rows too; of each dtype, rows with the least identities are kept."""
        by_dtype: dict[str, list[Part]] = {}
        for part in (*self.parts, *parts):
            by_dtype.setdefault(part[0].contexts[0].dtype, []).append(part)
        return Group(tuple(part for each in by_dtype.values() for part in _merged(_least(each))))


class Correction(NamedTuple):
    """The result of a predictor's `corrections` for a group; None if they failed."""

    group: Group
    models: Any | None


def _merged(parts: Iterable[Part]) -> list[Part]:
    """One part for all rows with the same fields: hundreds of parts of a row take long to send to another process."""
    alike: dict[tuple[str, ...], list[Part]] = {}
    for part in parts:
        alike.setdefault(part[0].contexts[0].fields, []).append(part)
    return [
        each[0] if len(each) == 1 else (concatenate([block for block, _ in each]), np.concatenate([i for _, i in each]))
        for each in alike.values()
    ]


def _least(parts: Sequence[Part]) -> list[Part]:
    """The MOST_ROWS rows of the least identities."""
    sizes = [len(ids) for _, ids in parts]
    if sum(sizes) <= MOST_ROWS:
        return [*parts]
    high, low = identity_words(np.concatenate([ids for _, ids in parts]))
    kept = np.zeros(len(high), dtype=np.bool_)
    kept[np.lexsort((low, high))[:MOST_ROWS]] = True
    ends = np.cumsum(sizes)[:-1]
    places = [np.flatnonzero(mask) for mask in np.split(kept, ends)]
    return [(block.take(rows), ids[rows]) for (block, ids), rows in zip(parts, places, strict=True) if len(rows)]


def with_rows(
    groups: Mapping[GroupKey, Group], parts: Iterable[Part], learned: tuple[KeySet, ...], gpu_ids: Collection[str]
) -> dict[GroupKey, Group]:
    """Return `groups` with those rows of `parts` that run on one of `gpu_ids` and are not among the learned ones."""
    grown = dict(groups)
    for block, ids in parts:
        new = ~any_holds(learned, identity_words(ids)[0])
        names = [item.gpu_id for item in block.contexts]
        for gpu in sorted({*names} & {*gpu_ids}):
            mine = np.array([name == gpu for name in names])[block.context]
            rows = np.flatnonzero(new & mine)
            if len(rows):
                key = (block.contexts[0].op, gpu)
                grown[key] = grown.get(key, Group()).joined([(block.take(rows), ids[rows])])
    return grown


def kept_groups(
    groups: Mapping[GroupKey, Group], before: Mapping[GroupKey, Group], unchanged: Collection[str]
) -> dict[GroupKey, Group]:
    """Return `groups`; a group of `before` stands for one with the same rows on a GPU that is `unchanged`."""
    return {
        key: before[key] if key in before and key[1] in unchanged and before[key].holds_same_rows(group) else group
        for key, group in groups.items()
    }
