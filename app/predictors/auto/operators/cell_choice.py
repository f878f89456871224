"""Which cells answer for an operator in a dtype: its own, that of a format of the same pipe, or any of a collective."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import compress
from typing import NamedTuple, Self

import numpy as np

from app.ops import OP_CODE, OPS
from app.predictors.auto.operators.models.per_operator import Cell
from app.predictors.priors import IS_COLLECTIVE
from app.predictors.roofline import peaks
from app.tables.arrays import Bools, Ints
from app.tables.gpus import GpuTable
from app.tables.ops import DTYPE_CODE, DTYPES

CellKey = tuple[str, str]
# Formats of the same pipe: a dtype without a cell of its own borrows that of the other, and with one on the GPUs that
# the other knows better.
LIKE = {"fp16": "bf16", "bf16": "fp16", "int8": "fp8"}
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
