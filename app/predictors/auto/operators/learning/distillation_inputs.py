"""Shapes between those that a GPU was measured with, which learning.distillation teaches too.

Products of many rows, as these are a grid of m; and attention of few, which served trees can follow on more rows still.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from app.ops import OPS
from app.predictors.auto.operators.collectives.interpolation import joined
from app.predictors.priors import IS_LINEAR
from app.tables.measurements import Measurements
from app.tables.ops import DTYPE_CODE

# Rows of a GPU from which the teacher is better: of 6,000 its random trees were a third worse than the rest.
LEAST_ROWS = 15_000
# Formats whose rows scatter evenly. In FP8 some of a B200's take twice as long as their neighbours, which random trees
# hand on to shapes between (configurations held out: 7.5 % off, then 7.9).
STEADY = ("fp16", "bf16")
# Unmeasured rows for each measured one, at most: every one costs as much time.
MOST_UNMEASURED = 1.0
# Attention: what makes a layer, the rows of a GPU up to which trees are taught, and unmeasured rows for each. Of more
# rows trees have no room for more (L40S, H100, B200: no better or worse); it was chosen at 1,700 trees of 4 rows each.
LAYER = ("heads", "kv_heads", "head_dim", "window")
MOST_ROWS, OF_LAYERS = 6_800, 1.0
# Layers drawn for each that is kept: most are measured, or have heads that no KV heads divide.
_TRIES = 8


def unmeasured(rows: Measurements) -> Measurements:
    """Rows that each GPU was not asked, of what it had apart; times are ones, and none of other operators.

    Of products of matrices in STEADY formats every m on pairs of n and k, at random where there are many. Of attention
    layers whose dimensions are each of one of two layers, in what a random row ran besides.
    """
    parts = [rows.take(np.empty(0, dtype=np.intp))]
    if len(rows):
        attends = OPS[int(rows.ops.kind[0])].fields.keys() >= {*LAYER}
        steady = IS_LINEAR[rows.ops.kind[0]] and rows.ops.dtype[0] in [DTYPE_CODE[name] for name in STEADY]
        for mine in (np.flatnonzero(rows.gpu == gpu) for gpu in np.unique(rows.gpu)):
            if steady and len(mine) >= LEAST_ROWS:
                parts.append(_of_gpu(rows.take(mine)))
            if attends and len(mine) <= MOST_ROWS:
                parts.append(_layers_of_gpu(rows.take(mine)))
    return joined(parts)


def _layers_of_gpu(rows: Measurements) -> Measurements:
    """Attention layers between those of one GPU's rows."""
    random, n = np.random.default_rng(0), int(OF_LAYERS * len(rows))
    layers = np.array([rows.ops.column(name) for name in LAYER])
    layers[1] = np.where(np.isnan(layers[1]), layers[0], layers[1])  # absent: as many as heads
    known = np.unique(layers, axis=1)
    one, other = random.integers(known.shape[1], size=(2, _TRIES * n))
    mixed = np.where(random.random((len(LAYER), _TRIES * n)) < 0.5, known[:, one], known[:, other])
    every = np.unique(np.concatenate([known, mixed], axis=1), axis=1, return_inverse=True)[1].ravel()
    new = ~np.isin(every[known.shape[1] :], every[: known.shape[1]]) & (mixed[0] % mixed[1] == 0.0)
    mixed = mixed[:, new][:, :n]
    table = rows.ops.take(random.choice(np.arange(len(rows)), size=mixed.shape[1]))
    dims = table.dims.copy()
    dims[[table.fields[name] for name in LAYER]] = mixed
    return Measurements(replace(table, dims=dims), np.full(len(table), rows.gpu[0]), np.ones(len(table)))


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
