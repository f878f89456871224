"""Which measurements bear on a query: the request's own, or the stored rows of the same kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.engine.engine import KernelIndex
from app.ops.kernel import FIELD_INDEX
from app.tables.measurements import Evidence, Measurements
from app.tables.ops import OpTable, concatenate

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

# Rows of one kernel that a query is transferred from; more of them only repeat each other.
MOST_STORED = 64
_SIZE = np.array([FIELD_INDEX[name] for name in ("flops", "bytes", "working_set_bytes", "blocks")])
_LAUNCH = FIELD_INDEX["launch"]


class Wanted(NamedTuple):
    """One operator row's GPU rows, each a query, and its own measurements, by their rows in the table given."""

    targets: Sequence[int]
    own: range


def bearing(stored: KernelIndex, ops: OpTable, targets: Ints, given: Measurements) -> Evidence:
    """Evidence of operator row 0 on the GPU rows `targets`: all of `given`, or what is stored where it is empty."""
    return gather(stored, ops, [Wanted(targets.tolist(), range(len(given)))], given)


def gather(stored: KernelIndex, ops: OpTable, wanted: Sequence[Wanted], given: Measurements) -> Evidence:
    """Evidence of operator row k on `wanted[k]`, for every k; queries are numbered through."""
    tables, take, query, width, number = [given], list[int](), list[int](), len(given), 0
    for row, (targets, own) in enumerate(wanted):
        found = None if own else stored.find(int(ops.label[row]))
        bears = own
        for target in targets:
            if found is not None and (len(found) > MOST_STORED or bears is own):
                piece = found if len(found) <= MOST_STORED else found.take(_closest(found, ops, row, target))
                tables.append(piece)
                bears = range(width, width + len(piece))
                width += len(piece)
            take.extend(bears)
            query.extend([number] * len(bears))
            number += 1
    rows = given if len(tables) == 1 else _stacked(tables)
    if len(tables) > 1 or len(take) != len(given):
        rows = rows.take(np.array(take, dtype=np.intp))
    return Evidence(rows, np.array(query, dtype=np.intp))


def _stacked(tables: Sequence[Measurements]) -> Measurements:
    return Measurements(
        concatenate([table.ops for table in tables]),
        np.concatenate([table.gpu for table in tables]),
        np.concatenate([table.latency_s for table in tables]),
    )


def _closest(rows: Measurements, ops: OpTable, row: int, target: int) -> Ints:
    """The MOST_STORED rows nearest in size, int [m]: of the target GPU first, of this launch before other sizes."""
    mine, theirs = ops.dims[:, row], rows.ops.dims
    apart: Floats = np.abs(np.log1p(theirs[_SIZE]) - np.log1p(mine[_SIZE, None])).sum(axis=0)
    return np.lexsort((apart, theirs[_LAUNCH] != mine[_LAUNCH], rows.gpu != target))[:MOST_STORED]
