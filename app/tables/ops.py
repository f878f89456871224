"""The operator table: everything that can be predicted is a row of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

DTYPES = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp8_block", "int8", "nvfp4")
DTYPE_CODE = {name: code for code, name in enumerate(DTYPES)}


@dataclass(frozen=True, slots=True)
class OpTable:
    """Operators as a struct of arrays.

    kind   int [n], code into `app.ops.OPS`
    dtype  int [n], code into DTYPES
    label  int [n], joins rows of one kernel (same name, same label); never a feature
    dims   float64 [fields, n], C-contiguous (compiled code is compiled once per memory layout), one row per name
           of `fields`; absent figures are NaN
    """

    kind: Ints
    dtype: Ints
    label: Ints
    fields: Mapping[str, int]
    dims: Floats

    def __len__(self) -> int:
        return int(self.dims.shape[1])

    def column(self, name: str) -> Floats:
        """One dimension of every row, float64 [n]."""
        column: Floats = self.dims[self.fields[name]]
        return column

    def take(self, i: Ints) -> OpTable:
        """The rows `i`, repeats allowed."""
        return OpTable(self.kind[i], self.dtype[i], self.label[i], self.fields, np.take(self.dims, i, axis=1))


def concatenate(tables: Sequence[OpTable]) -> OpTable:
    """Stack tables that share their fields."""
    first = tables[0]
    if any(table.fields != first.fields for table in tables):
        raise ValueError("operator tables with different fields cannot be stacked")
    return OpTable(
        np.concatenate([table.kind for table in tables]),
        np.concatenate([table.dtype for table in tables]),
        np.concatenate([table.label for table in tables]),
        first.fields,
        np.concatenate([table.dims for table in tables], axis=1),
    )
