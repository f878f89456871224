"""Ranges that models learned from: how far a row is out of one, and which of several models it is nearest to."""

from __future__ import annotations

import numpy as np

from app.predictors.auto.operators.models.features import EAGER, LIBRARY
from app.predictors.auto.operators.models.packed import GpuModels, Packed
from app.predictors.intervals.groups import S_CALIBRATED
from app.runtime.compiled import compiled
from app.tables.arrays import Floats, Ints, Singles

# How far out of a range a shape may be, as features are rounded.
_ROUNDED = 1e-3
# Further than any size, as a logarithm: the kernels of one library say less of another's than of messages of any size.
_OTHER_LIBRARY = 100.0


@compiled
def extrapolation_distance(shape: Singles, row: int, low: Floats, high: Floats) -> float:
    """How far the row's shape is out of the range learned from, as a logarithm; 0 inside."""
    distance = 0.0
    for f in range(EAGER):
        distance = max(distance, low[f] - shape[f, row], shape[f, row] - high[f])
    return float(distance) if distance > _ROUNDED else 0.0


@compiled
def cells_of(
    shape: Singles, codes: tuple[Ints, Ints], queries: tuple[Ints, Ints], packed: Packed, gpu_models: GpuModels
) -> Ints:
    """The cell that answers for operator row `i[q]` on GPU row `j[q]`, asked (i, j), -1 none, [n].

    `codes`: kind and dtype of every row. Of cells that may answer, the one whose range holds the row, or is nearest to
    it, a cell of its library before any other; of such the first if it knows the GPU itself, else the one that knows
    the GPU best.
    """
    (kind, dtype), (i, j), most = codes, queries, gpu_models.cell.shape[2]
    cells = np.empty(len(i), dtype=np.intp)
    for q in range(len(i)):
        row, gpu = i[q], j[q]
        best = gpu_models.cell[kind[row], dtype[row], 0]
        if most > 1 and gpu_models.cell[kind[row], dtype[row], 1] >= 0:
            nearest, known = _distance(shape, row, packed, best), gpu_models.situation[best, gpu]
            if known <= S_CALIBRATED:
                known = 0
            for k in range(1, most):
                cell = gpu_models.cell[kind[row], dtype[row], k]
                if cell < 0:
                    break
                distance, situation = _distance(shape, row, packed, cell), gpu_models.situation[cell, gpu]
                if distance < nearest or (distance == nearest and situation < known):
                    best, nearest, known = cell, distance, situation
        cells[q] = best
    return cells


@compiled
def _distance(shape: Singles, row: int, packed: Packed, cell: int) -> float:
    """How far a collective is out of the range of a cell; of another library further than of any size."""
    low, high, library = packed.low[cell], packed.high[cell], shape[LIBRARY, row]
    other = max(low[LIBRARY] - library, library - high[LIBRARY], 0.0)
    return float(extrapolation_distance(shape, row, low, high) + _OTHER_LIBRARY * other)


@compiled
def most_devices(gpu_models: GpuModels, cell: int, gpu: int) -> float:
    """The logarithm of the most devices that a cell was taught with on a GPU, rounded up; infinite where none tells."""
    most = -np.inf
    for devices in gpu_models.devices[cell, gpu]:
        if np.isfinite(devices):
            most = devices + _ROUNDED
    return most if np.isfinite(most) else np.inf
