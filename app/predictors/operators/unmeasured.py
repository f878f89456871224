"""Shapes between those that a GPU was measured with, which app.predictors.operators.distillation teaches too."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from app.predictors.operators.priors import IS_LINEAR
from app.predictors.operators.sisters import joined
from app.tables.measurements import Measurements
from app.tables.ops import DTYPE_CODE

# Rows of a GPU from which the teacher is better: of 6,000 its random trees were a third worse than the rest.
LEAST_ROWS = 15_000
# Formats whose rows scatter evenly. In FP8 some of a B200's take twice as long as their neighbours, which random trees
# hand on to shapes between (configurations held out: 7.5 % off, then 7.9).
STEADY = ("fp16", "bf16")
# Unmeasured rows for each measured one, at most: every one costs as much time.
MOST_UNMEASURED = 1.0


def unmeasured(rows: Measurements) -> Measurements:
    """Products of matrices that each GPU was not asked: its every m on pairs of n and k that it only had apart.

    At random where there are many; times are ones. None of other operators and of formats that are not STEADY.
    """
    parts = [rows.take(np.empty(0, dtype=np.intp))]
    steady = [DTYPE_CODE[name] for name in STEADY]
    if len(rows) and IS_LINEAR[rows.ops.kind[0]] and rows.ops.dtype[0] in steady:
        of_gpus = (np.flatnonzero(rows.gpu == gpu) for gpu in np.unique(rows.gpu))
        parts += [_of_gpu(rows.take(mine)) for mine in of_gpus if len(mine) >= LEAST_ROWS]
    return joined(parts)


def _of_gpu(rows: Measurements) -> Measurements:
    """The same of one GPU's rows."""
    (ns, n), (ks, k) = (np.unique(rows.ops.column(name), return_inverse=True) for name in "nk")
    ms, known = np.unique(rows.ops.column("m")), np.zeros((len(ns), len(ks)), dtype=np.bool_)
    known[n, k] = True
    pairs = np.random.default_rng(0).permutation(np.argwhere(~known))[: int(MOST_UNMEASURED * len(rows) / len(ms))]
    table = rows.ops.take(np.zeros(len(pairs) * len(ms), dtype=np.intp))
    dims = table.dims.copy()
    sizes = (np.tile(ms, len(pairs)), np.repeat(ns[pairs[:, 0]], len(ms)), np.repeat(ks[pairs[:, 1]], len(ms)))
    for name, size in zip("mnk", sizes, strict=True):
        dims[table.fields[name]] = size
    return Measurements(replace(table, dims=dims), np.full(len(table), rows.gpu[0]), np.ones(len(table)))
