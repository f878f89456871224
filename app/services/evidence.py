"""Which measurements bear on a query: the request's own, or the stored rows of the same kernel."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from app.ops.kernel import FIELD_INDEX, IDENTITY_FIELDS
from app.services.engine import KernelIndex
from app.tables.measurements import Evidence, Measurements
from app.tables.ops import OpTable

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

# Rows of one kernel that a query is transferred from; more of them only repeat each other.
MOST_STORED = 64
_SIZE = np.array([FIELD_INDEX[name] for name in ("flops", "bytes", "working_set_bytes", "blocks")])
_IDENTITY = np.array([FIELD_INDEX[name] for name in IDENTITY_FIELDS])


def bearing(stored: KernelIndex, ops: OpTable, targets: Ints, given: Measurements) -> Evidence:
    """Evidence of operator row 0 on the GPU rows `targets`: what the request brought, else what is stored."""
    if len(given):
        return _for_each(given, len(targets))
    found = stored.find(int(ops.label[0]))
    if found is None:
        return _for_each(given, len(targets))
    if len(found) <= MOST_STORED:
        return _for_each(found, len(targets))
    chosen = [_closest(found, ops, int(target)) for target in targets]
    query = np.repeat(np.arange(len(targets)), [len(rows) for rows in chosen])
    return Evidence(found.take(np.concatenate(chosen)), query)


def _for_each(rows: Measurements, n: int) -> Evidence:
    """Every row bears on each of `n` queries."""
    if n == 1:
        return Evidence(rows, np.zeros(len(rows), dtype=np.intp))
    every = np.tile(np.arange(len(rows)), n)
    return Evidence(rows.take(every), np.repeat(np.arange(n), len(rows)))


def _closest(rows: Measurements, ops: OpTable, target: int) -> Ints:
    """The MOST_STORED rows nearest in size, int [m]: of the target GPU first, of this launch before other sizes."""
    mine, theirs = ops.dims[:, :1], rows.ops.dims
    apart: Floats = np.abs(np.log1p(theirs[_SIZE]) - np.log1p(mine[_SIZE])).sum(axis=0)
    known = ~np.isnan(mine[_IDENTITY])
    same = ((theirs[_IDENTITY] == mine[_IDENTITY]) | ~known).all(axis=0)
    return np.lexsort((apart, ~same, rows.gpu != target))[:MOST_STORED]
