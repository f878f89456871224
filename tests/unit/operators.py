"""Small hand-made tables of deep-learning operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from app.ops import MIXED_FIELDS, OP_CODE, OPS
from app.tables.ops import DTYPE_CODE, OpTable


def _filled(name: str, row: Mapping[str, float]) -> dict[str, float]:
    """Every column of one row; a pair may be given by its field's name."""
    columns = {}
    for dim in OPS[OP_CODE[name]].dims:
        for column in dim.columns:
            value = row.get(column, row.get(dim.name, dim.default) if dim.pair else dim.default)
            assert value is not None, f"{name} needs {dim.name}"
            columns[column] = value
    assert set(row) <= set(columns) | {dim.name for dim in OPS[OP_CODE[name]].dims}
    return columns


def operators(name: str, *rows: Mapping[str, float], dtype: str = "fp32") -> OpTable:
    """A table of one family."""
    op = OPS[OP_CODE[name]]
    dims = np.array([[_filled(name, row)[column] for column in op.fields] for row in rows], dtype=np.float64).T
    zeros = np.zeros(len(rows), dtype=np.intp)
    return OpTable(zeros + OP_CODE[name], zeros + DTYPE_CODE[dtype], zeros, op.fields, dims.reshape(len(op.fields), -1))


def mixed(tables: Sequence[OpTable]) -> OpTable:
    """Tables of several families as one: columns that a family lacks are NaN."""
    parts = []
    for table in tables:
        dims = np.full((len(MIXED_FIELDS), len(table)), np.nan)
        for name, row in table.fields.items():
            dims[MIXED_FIELDS[name]] = table.dims[row]
        parts.append(dims)
    kind, dtype, label = (
        np.concatenate([getattr(table, name) for table in tables]) for name in ("kind", "dtype", "label")
    )
    return OpTable(kind, dtype, label, MIXED_FIELDS, np.concatenate(parts, axis=1))
