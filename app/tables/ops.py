"""The operator table, whose rows are everything that can be predicted."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from app.config import SEED_DATA
from app.tables.arrays import Floats, Ints

_GGUF: dict[str, float] = json.loads((SEED_DATA / "quantization.json").read_text("utf-8"))["gguf"]["rows"]

# Number formats of activations; then those of products alone, of experts and linear layers: of weights only, or of
# activations that are quantised for each product. Codes are kept in artefacts, so new formats come last.
ACTIVATION_DTYPES = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp8_block", "int8", "nvfp4")
EXPERT_DTYPES = ("w4a16_mxfp4", "w4a8_mxfp4", "w4a8_mxfp4_mxfp8")
WEIGHT_DTYPES = ("int4_wo", *EXPERT_DTYPES, "int8_wo", "fp8_wo", "mxfp4", "mxfp6", *_GGUF)
# Those whose products are in 16 bits.
WEIGHT_ONLY_DTYPES = ("int4_wo", "int8_wo", "fp8_wo", *_GGUF)
DTYPES = ACTIVATION_DTYPES + WEIGHT_DTYPES
DTYPE_CODE = {name: code for code, name in enumerate(DTYPES)}

# Bytes per element including scales: inputs, weights, outputs. FP8 is scaled per tensor or row (negligible bytes),
# `fp8_block` by one FP32 per 1x128 inputs and 128x128 weights, NVFP4 by an FP8 per 16, MXFP by a
# byte per 32 (OCP MX 1.0), `int4_wo` and `int8_wo` by an FP16 per group of 128, formats of GGUF as a whole model is;
# results of 8 bits and fewer are written in BF16.
_MX = 1.0 / 32.0
_BYTES = {
    "fp64": (8.0, 8.0, 8.0),
    "fp32": (4.0, 4.0, 4.0),
    "tf32": (4.0, 4.0, 4.0),
    "fp16": (2.0, 2.0, 2.0),
    "bf16": (2.0, 2.0, 2.0),
    "fp8": (1.0, 1.0, 2.0),
    "fp8_block": (1.0 + 4.0 / 128.0, 1.0 + 4.0 / 128.0**2, 2.0),
    "int8": (1.0, 1.0, 2.0),
    "nvfp4": (0.5 + 1.0 / 16.0, 0.5 + 1.0 / 16.0, 2.0),
    "int4_wo": (2.0, 0.5 + 2.0 / 128.0, 2.0),
    "w4a16_mxfp4": (2.0, 0.5 + _MX, 2.0),
    "w4a8_mxfp4": (1.0, 0.5 + _MX, 2.0),
    "w4a8_mxfp4_mxfp8": (1.0 + _MX, 0.5 + _MX, 2.0),
    "int8_wo": (2.0, 1.0 + 2.0 / 128.0, 2.0),
    "fp8_wo": (2.0, 1.0, 2.0),
    "mxfp4": (0.5 + _MX, 0.5 + _MX, 2.0),
    "mxfp6": (0.75 + _MX, 0.75 + _MX, 2.0),
    **{name: (2.0, bits / 8.0, 2.0) for name, bits in _GGUF.items()},
}
DTYPE_BYTES, WEIGHT_BYTES, OUTPUT_BYTES = np.array([_BYTES[name] for name in DTYPES]).T


@dataclass(frozen=True, slots=True)
class OpTable:
    """Operators as a struct of arrays.

    kind   int [n], code into `app.ops.OPS`
    dtype  int [n], code into DTYPES
    label  int [n], joins rows of one kernel (same name, same label); never a feature
    dims   float64 [fields, n], C-contiguous (compiled code is compiled once per memory layout), one row per name
           of `fields`; absent figures are NaN
    place  None, or of c batched configurations (app/networks/batched.py) int [fields, n], the row of `dims`
           that holds each figure: there `dims` is [figures, c], and a column [c, n]
    """

    kind: Ints
    dtype: Ints
    label: Ints
    fields: Mapping[str, int]
    dims: Floats
    place: Ints | None = None

    def __len__(self) -> int:
        return len(self.kind)

    def column(self, name: str, /) -> Floats:
        """Return one dimension of every row, float64 [n] or [c, n]."""
        row = self.fields[name]
        column: Floats = self.dims[row] if self.place is None else self.dims[self.place[row]].T
        return column

    def take(self, i: Ints) -> OpTable:
        """Return the rows `i`, which may repeat."""
        kind, dtype, label = self.kind[i], self.dtype[i], self.label[i]
        if self.place is not None:
            return OpTable(kind, dtype, label, self.fields, self.dims, self.place[:, i])
        return OpTable(kind, dtype, label, self.fields, self.dims.take(i, axis=1))

    def with_columns(self, columns: Mapping[str, Floats]) -> OpTable:
        """Return the table with these dimensions, float64 [n] each, in place of its own; of no batched network."""
        dims = self.dims.copy()
        for name, column in columns.items():
            dims[self.fields[name]] = column
        return replace(self, dims=dims)

    def of_family(self, rows: slice, names: Collection[str]) -> OpTable:
        """Return a view of consecutive rows of one family, of these columns; compiled code needs contiguous `dims`."""
        kind, dtype, label, fields = self.kind[rows], self.dtype[rows], self.label[rows], self.fields
        if self.place is not None:
            return OpTable(kind, dtype, label, fields, self.dims, self.place[:, rows])
        dims = self.dims[:, rows]
        columns = dict(zip(names, map(dims.__getitem__, map(fields.__getitem__, names)), strict=True))
        return FamilyTable(kind, dtype, label, fields, dims, column=columns.__getitem__)

    def slice(self, first: int, stop: int) -> OpTable:
        """Return rows `first` to `stop`, contiguous, as compiled code expects; of no batched network."""
        here = slice(first, stop)
        dims = np.ascontiguousarray(self.dims[:, here])
        return OpTable(self.kind[here], self.dtype[here], self.label[here], self.fields, dims)


@dataclass(frozen=True, slots=True)
class FamilyTable(OpTable):
    """Rows of one operator family, whose functions read the same columns again and again: `column` looks them up."""

    column: Callable[[str], Floats] = field(kw_only=True)


def concatenate(tables: Sequence[OpTable]) -> OpTable:
    """Return the concatenation of tables with equal fields."""
    first = tables[0]
    if any(table.fields != first.fields for table in tables):
        raise ValueError("operator tables with different fields cannot be stacked")
    kind, dtype, label = (
        np.concatenate([getattr(table, name) for table in tables]) for name in ("kind", "dtype", "label")
    )
    if first.place is None:
        return OpTable(kind, dtype, label, first.fields, np.concatenate([table.dims for table in tables], axis=1))
    before = np.cumsum([0, *(len(table.dims) for table in tables)])
    places = [table.place + at for table, at in zip(tables, before, strict=False) if table.place is not None]
    dims = np.concatenate([table.dims for table in tables])
    return OpTable(kind, dtype, label, first.fields, dims, np.concatenate(places, axis=1))
