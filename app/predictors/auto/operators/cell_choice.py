"""Which cell answers for an operator in a dtype, and how far a row is from its training range.

It is its own, that of a format of the same pipe, or any of a collective.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import compress
from typing import NamedTuple, Self

import numpy as np

from app.bands.groups import S_CALIBRATED
from app.ops import OP_CODE, OPS
from app.predictors.auto.operators.models.features import EAGER, LIBRARY
from app.predictors.auto.operators.models.packed import GpuModels, Packed
from app.predictors.auto.operators.models.per_operator import Cell
from app.predictors.priors import IS_COLLECTIVE
from app.predictors.roofline import peaks
from app.runtime.compiled import compiled, compiled_per_row
from app.tables.arrays import Bools, Floats, Ints, Singles
from app.tables.gpus import GpuTable
from app.tables.ops import DTYPE_CODE, DTYPES, WEIGHT_ONLY_DTYPES

CellKey = tuple[str, str]
# Formats of the same pipe: a dtype without a cell of its own borrows that of the other, and with one on the GPUs that
# the other knows better.
LIKE = {"fp16": "bf16", "bf16": "fp16", "int8": "fp8", "mxfp4": "nvfp4", "mxfp6": "fp8"}
LIKE |= {dtype: "int4_wo" for dtype in WEIGHT_ONLY_DTYPES if dtype != "int4_wo"}
# The dtype that borrows from native GPUs only: an Arc emulates FP8 on its vector units, but runs INT8 on matrix units.
_BORROWS_NATIVE = "int8"


class CellChoice(NamedTuple):
    """The cells that can answer for every operator and dtype.

    rows      rows of the packed arrays, in order: operator and dtype -> key of the cell that answers. Every cell, and
              under another key those borrowed without the GPUs that emulate the format
    cell      int [kinds, dtypes, dtypes], rows that can answer, the default first; -1 pads. Only collectives have more
              than two
    borrowed  bool [kinds, dtypes], whether the default was trained on another dtype
    """

    rows: Mapping[CellKey, CellKey]
    cell: Ints
    borrowed: Bools

    @classmethod
    def among(cls, cells: Mapping[CellKey, Cell]) -> Self:
        """Return the choice among these cells."""
        lending = {(op, _BORROWS_NATIVE): (op, LIKE[_BORROWS_NATIVE]) for op, _ in cells}
        apart = {key: of for key, of in lending.items() if of in cells and key not in cells}
        rows = {key: key for key in cells} | apart
        whole = {key for key, one in cells.items() if one.borrowed}
        number, cell = {key: row for row, key in enumerate(rows)}, np.full((len(OPS), len(DTYPES), len(DTYPES)), -1)
        for name, kind in OP_CODE.items():
            every = [key for key in cells if key[0] == name]  # a collective moves bytes of any dtype
            others = every if IS_COLLECTIVE[kind] else []
            for dtype, code in DTYPE_CODE.items():
                alike = [(name, dtype), (name, LIKE.get(dtype, dtype)), *others]
                able = [number[key] for key in dict.fromkeys(alike) if key in number]
                # A borrowed cell has all that its lender has.
                one = not others and (dtype == _BORROWS_NATIVE or (name, dtype) in whole)
                able = able[:1] if one else able
                cell[kind, code, : len(able)] = able
        borrowed = cell[:, :, 0] >= 0
        for (name, dtype), known in cells.items():
            borrowed[OP_CODE[name], DTYPE_CODE[dtype]] = known.borrowed
        return cls(rows, cell, borrowed)

    @property
    def keys(self) -> list[CellKey]:
        """Return the key of the cell behind each row."""
        return list(self.rows.values())


def emulating(gpus: GpuTable) -> frozenset[str]:
    """Return GPUs that emulate the lending format, whose times do not carry over to the borrowing one."""
    return frozenset(compress(gpus.ids, np.isnan(peaks(gpus)[DTYPE_CODE[LIKE[_BORROWS_NATIVE]]])))


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
