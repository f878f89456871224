"""Select the measurements that inform a kernel query: the request's own, or stored rows of the same kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from app.engine.engine import KernelIndex
from app.ops.kernel import FIELD_INDEX
from app.tables.arrays import Floats, Ints
from app.tables.measurements import Evidence, Measurements, stacked
from app.tables.ops import OpTable

# Rows that one query is transferred from, in time that grows with the cube. More of one kernel add no information.
MOST_ROWS = 64
_SIZE = np.array([FIELD_INDEX[name] for name in ("flops", "bytes", "working_set_bytes", "blocks")])
_LAUNCH = FIELD_INDEX["launch"]


class KernelQueries(NamedTuple):
    """Queries of one operator row: its GPU rows, one query each, and the rows of its own measurements."""

    targets: Sequence[int]
    own: range


def kernel_evidence(stored: KernelIndex, ops: OpTable, targets: Ints, given: Measurements) -> Evidence:
    """Return the evidence for operator row 0 on GPU rows `targets`: all of `given`, or stored rows if empty."""
    return gather_evidence(stored, ops, [KernelQueries(targets.tolist(), range(len(given)))], given)


def gather_evidence(
    stored: KernelIndex, ops: OpTable, queries: Sequence[KernelQueries], given: Measurements
) -> Evidence:
    """Return the evidence for operator row k on `queries[k]`, for every k. Queries are numbered consecutively."""
    take: list[int] = []
    query: list[int] = []
    tables, width, number = [given], len(given), 0
    for row, (targets, own) in enumerate(queries):
        rows = None if own else stored.find(int(ops.label[row]))
        rows = given.take(np.array(own)) if len(own) > MOST_ROWS else rows
        bears = own
        for target in targets:
            if rows is not None and (len(rows) > MOST_ROWS or bears is own):
                piece = rows if len(rows) <= MOST_ROWS else rows.take(_closest(rows, ops, row, target))
                tables.append(piece)
                bears = range(width, width + len(piece))
                width += len(piece)
            take.extend(bears)
            query.extend([number] * len(bears))
            number += 1
    rows = given if len(tables) == 1 else stacked(tables)
    if len(tables) > 1 or len(take) != len(given):
        rows = rows.take(np.array(take, dtype=np.intp))
    return Evidence(rows, np.array(query, dtype=np.intp))


def _closest(rows: Measurements, ops: OpTable, row: int, target: int) -> Ints:
    """Return the MOST_ROWS rows most like the query, int [m]: of its launch, then by size."""
    mine, theirs = ops.dims[:, row], rows.ops.dims
    apart: Floats = np.abs(np.log1p(theirs[_SIZE]) - np.log1p(mine[_SIZE, None])).sum(axis=0)
    unlike = (rows.gpu != target, apart, theirs[_LAUNCH] != mine[_LAUNCH], rows.ops.label != ops.label[row])
    return np.lexsort(unlike)[:MOST_ROWS]
