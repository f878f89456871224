"""Which one tile all kernels for batches of products have on a GPU, where its times say that there is but one.

For single products a library has many kernels and a heuristic that takes one by the shape. Of batches in FP32 it often
has but one: rows of 65 then take as long as rows of 128 on one GPU, and half as long on another. No figure of a GPU
says which, but few of its rows do: by the right tile their times scatter around the physics half as much.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from app.ops import OPS
from app.predictors.auto.operators.learning.fitting import TRIAL_ROWS
from app.predictors.auto.operators.models.training_samples import Samples, samples
from app.predictors.auto.operators.physics.analytic_model import ANY_TILE
from app.predictors.auto.operators.physics.physics_fit import fitted_factors
from app.predictors.priors import TILES_OF_KIND
from app.tables.gpus import GpuTable
from app.tables.measurements import Measurements

# Rows of a GPU that may tell, and the part of the deviation that another tile must leave at most.
LEAST_ROWS, BETTER = 16, 0.8


def tiles(kind: int) -> range:
    """Rows of CANDIDATES that may be the only one of an operator, by its code; none of what has many kernels."""
    return range(TILES_OF_KIND[kind] if OPS[kind].batched else 0)


def tiled(rows: Measurements, gpus: GpuTable, known: Callable[[str, str], int]) -> Samples:
    """Measured rows of one operator in one dtype, with the tile that those of each GPU tell; else the `known` one.

    known  id of a GPU and its make -> its tile or ANY_TILE
    """
    found = samples(rows, gpus)
    if not len(rows) or not tiles(int(rows.ops.kind[0])):
        return found
    tile = np.full(len(rows), ANY_TILE)
    for gpu in np.unique(rows.gpu).tolist():
        mine = np.flatnonzero(rows.gpu == gpu)
        tile[mine] = _of_gpu(rows.take(mine), gpus, known(found.names[gpu], found.architectures[gpu]))
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
    """What physics with fitted constants misses, in log space."""
    found = samples(rows, gpus, np.full(len(rows), tile))
    return float(np.abs(found.residual(fitted_factors(found.terms, found.latency_s))).mean())
