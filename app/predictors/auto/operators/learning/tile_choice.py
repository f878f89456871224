"""Choice of the single tile of a GPU's kernels for batched products, where its times show that there is one.

For single products a library has many kernels and a heuristic that takes one by the shape. For batches in FP32 it often
has one: rows of 65 then take as long as rows of 128 on one GPU, and half as long on another. No figure of a GPU shows
which, but a few measured rows do: with the right tile their times scatter around the physics half as much.
"""

from __future__ import annotations

import numpy as np

from app.coefficients import Coefficients
from app.ops import OPS
from app.predictors.auto.operators.learning.fitting import TRIAL_ROWS
from app.predictors.auto.operators.models.per_operator import Cell
from app.predictors.auto.operators.models.training_samples import Samples, samples
from app.predictors.physics.analytic_model import ANY_TILE
from app.predictors.physics.physics_fit import fitted_factors
from app.predictors.priors import TILES_OF_KIND
from app.tables.gpus import GpuTable
from app.tables.measurements import Measurements

_FITTED = Coefficients("learning")

# Least rows of a GPU to choose from, and the largest ratio of the deviation with the new tile to that with the old one.
LEAST_ROWS, BETTER = 16, _FITTED.number("better_tile")


def tiles(kind: int) -> range:
    """Rows of CANDIDATES that can be the single tile of an operator, by code; empty for operators of many kernels."""
    return range(TILES_OF_KIND[kind] if OPS[kind].batched else 0)


def tiled(rows: Measurements, gpus: GpuTable, before: Cell) -> Samples:
    """Training samples of one operator in one dtype, with the tile chosen by the rows of each GPU.

    The tile by other GPUs of the cell `before` stays where the rows do not show another.
    """
    training = samples(rows, gpus)
    if not len(rows) or not tiles(int(rows.ops.kind[0])):
        return training
    tile = np.full(len(rows), ANY_TILE)
    for gpu in np.unique(rows.gpu).tolist():
        mine = np.flatnonzero(rows.gpu == gpu)
        known = before.others(training.names[gpu], training.architectures[gpu]).tile
        tile[mine] = _of_gpu(rows.take(mine), gpus, known)
    return samples(rows, gpus, tile)


def _of_gpu(rows: Measurements, gpus: GpuTable, known: int) -> int:
    """The tile of one GPU's rows."""
    if len(rows) < LEAST_ROWS:
        return known
    rows = rows.take(np.random.default_rng(0).permutation(len(rows))[:TRIAL_ROWS])
    off = {tile: _deviation(rows, gpus, tile) for tile in (ANY_TILE, *tiles(int(rows.ops.kind[0])))}
    best = min(off, key=lambda tile: off[tile])
    return best if off[best] < BETTER * off[known] else known


def _deviation(rows: Measurements, gpus: GpuTable, tile: int) -> float:
    """Mean absolute log error of the physics with fitted constants and this tile."""
    training = samples(rows, gpus, np.full(len(rows), tile))
    return float(np.abs(training.residual(fitted_factors(training.terms, training.latency_s))).mean())
