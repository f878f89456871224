"""Training ranges: extrapolation distance of a row, and the cell whose training range is nearest to it."""

from __future__ import annotations

import numpy as np

from app.bands.groups import S_CALIBRATED
from app.predictors.auto.operators.models.features import EAGER, LIBRARY
from app.predictors.auto.operators.models.packed import GpuModels, Packed
from app.predictors.priors import IS_COLLECTIVE
from app.runtime.compiled import compiled, compiled_per_row
from app.tables.arrays import Floats, Ints, Singles

# Tolerance of the training range, as features are rounded to single precision.
_ROUNDED = 1e-3
# Distance of another library, larger than that of any size (a logarithm): measurements of one library predict another's
# kernels worse than messages of any size.
_OTHER_LIBRARY = 100.0


@compiled_per_row
def extrapolation_distance(shape: Singles, row: int, low: Floats, high: Floats) -> float:
    """Return the extrapolation distance of shape `row` from the training range, as a logarithm; 0 inside."""
    distance = 0.0
    for f in range(EAGER):
        distance = max(distance, low[f] - shape[f, row], shape[f, row] - high[f])
    return float(distance) if distance > _ROUNDED else 0.0


@compiled
def cells_of(
    shape: Singles, codes: tuple[Ints, Ints], queries: tuple[Ints, Ints], packed: Packed, gpu_models: GpuModels
) -> Ints:
    """Return the cell that predicts operator row `i[q]` on GPU row `j[q]`, int [n]; -1 for none.

    `codes`: kind and dtype of every row. `queries`: (i, j). Among the cells that apply, the first with the best support
    on the GPU wins. Of a collective a cell whose training range holds the row, or is nearest to it, comes before; cells
    of the row's library come before any other; and all cells that were measured on the GPU have the same support.
    """
    (kind, dtype), (i, j), most = codes, queries, gpu_models.cell.shape[2]
    cells = np.empty(len(i), dtype=np.intp)
    for q in range(len(i)):
        row, gpu = i[q], j[q]
        best = gpu_models.cell[kind[row], dtype[row], 0]
        if most > 1 and gpu_models.cell[kind[row], dtype[row], 1] >= 0:
            nearest, known, sends = 0.0, gpu_models.situation[best, gpu], IS_COLLECTIVE[kind[row]]
            if sends:
                nearest, known = _distance(shape, row, packed, best), 0 if known <= S_CALIBRATED else known
            for k in range(1, most):
                cell = gpu_models.cell[kind[row], dtype[row], k]
                if cell < 0:
                    break
                distance = _distance(shape, row, packed, cell) if sends else nearest
                situation = gpu_models.situation[cell, gpu]
                if distance < nearest or (distance == nearest and situation < known):
                    best, nearest, known = cell, distance, situation
        cells[q] = best
    return cells


@compiled_per_row
def _distance(shape: Singles, row: int, packed: Packed, cell: int) -> float:
    """Return the extrapolation distance of a collective from a cell; another library is farther than any size."""
    low, high, library = packed.low[cell], packed.high[cell], shape[LIBRARY, row]
    other = max(low[LIBRARY] - library, library - high[LIBRARY], 0.0)
    return float(extrapolation_distance(shape, row, low, high) + _OTHER_LIBRARY * other)


@compiled
def most_devices(gpu_models: GpuModels, cell: int, gpu: int) -> float:
    """Return the logarithm of the largest device count in a cell's training on a GPU, rounded up; inf if none."""
    devices = gpu_models.devices[cell, gpu]
    known = devices[np.isfinite(devices)]
    return known[-1] + _ROUNDED if len(known) else np.inf
