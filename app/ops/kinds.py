"""Figures of a table of several operator families, family by family."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from app.ops import OPS
from app.ops.base import Op
from app.ops.figures import Passing, Work
from app.tables.arrays import Floats, Ints
from app.tables.ops import OpTable


class Kind(NamedTuple):
    """Rows of one family: their places in the whole table, and a table of them alone."""

    op: Op
    rows: Ints | slice
    table: OpTable


def kinds_of(ops: OpTable) -> list[Kind]:
    """The rows of each family; a table sorted by family is not copied."""
    if not len(ops):
        return []
    first = int(ops.kind[0])
    if len(ops) == 1 or (ops.kind == first).all():
        return [Kind(OPS[first], slice(None), ops)]
    order = None
    if (np.diff(ops.kind) < 0).any():
        order = np.argsort(ops.kind, kind="stable")
        ops = ops.take(order)
    ends = np.flatnonzero(np.diff(ops.kind, append=len(OPS))) + 1
    parts = [slice(a, b) for a, b in pairwise([0, *ends.tolist()])]
    rows: Sequence[Ints | slice] = parts if order is None else [order[part] for part in parts]
    return [Kind(OPS[int(ops.kind[part.start])], of, ops.part(part)) for part, of in zip(parts, rows, strict=True)]


def work_of(ops: OpTable, kinds: list[Kind]) -> Work:
    """Work of every row, float64 [n] each."""
    if len(kinds) == 1:
        return kinds[0].op.work(ops)
    work = Work(np.empty(len(ops)), np.empty(len(ops)), np.empty(len(ops)))
    for op, rows, table in kinds:
        for column, part in zip(work, op.work(table), strict=True):
            column[rows] = part
    return work


def least_flops_of(flops: Floats, kinds: list[Kind]) -> Floats:
    """FLOPs of every row by the cheapest algorithm known, float64 [n], given `flops` [n] of the direct one."""
    least = flops
    for op, rows, table in kinds:
        if op.saving is not None:
            least = least.copy()
            least[rows] /= op.saving(table)
    return least


def link_bytes_of(ops: OpTable, kinds: list[Kind]) -> Floats | None:
    """Bytes that each device sends over its link, float64 [n]; None where no row is a collective."""
    linked = [kind for kind in kinds if kind.op.link_bytes is not None]
    if not linked:
        return None
    sent = np.zeros(len(ops))
    for op, rows, table in linked:
        if op.link_bytes is not None:
            sent[rows] = op.link_bytes(table)
    return sent


def passing_of(ops: OpTable, kinds: list[Kind], nothing: Floats) -> Passing:
    """Messages of collectives, [n] each; the array `nothing` [n] where no row is a collective."""
    linked = [kind for kind in kinds if kind.op.passing is not None]
    if not linked:
        return Passing(nothing, nothing, nothing)
    passing = Passing(*(np.zeros(len(ops)) for _ in Passing._fields))
    for op, rows, table in linked:
        if op.passing is not None:
            for column, part in zip(passing, op.passing(table), strict=True):
                column[rows] = part
    return passing
