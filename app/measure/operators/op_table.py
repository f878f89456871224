"""Conversion of operator rows in the measurements form to an OpTable.

The service's forms check such rows; these are the suite's own and need no checks, and the measuring machine may lack
the service's packages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from app.ops import MIXED_FIELDS, OP_CODE, OPS
from app.ops.base import Dim
from app.tables.ops import DTYPE_CODE, OpTable

Row = Mapping[str, Any]


def table_of(rows: Sequence[Row]) -> OpTable:
    """Return the rows as an OpTable, in order."""
    kind = np.array([OP_CODE[row["op"]] for row in rows], dtype=np.intp)
    dtype = np.array([DTYPE_CODE[row["dtype"]] for row in rows], dtype=np.intp)
    dims = np.full((len(MIXED_FIELDS), len(rows)), np.nan)
    for k, row in enumerate(rows):
        for dim in OPS[kind[k]].dims:
            dims[[MIXED_FIELDS[name] for name in dim.columns], k] = _cell(dim, row)
    return OpTable(kind, dtype, np.zeros(len(rows), dtype=np.intp), MIXED_FIELDS, dims)


def _cell(dim: Dim, row: Row) -> Any:
    """Return the value of a field's columns: one number, or both of a pair."""
    if dim.name == "backward":
        return float(row.get("phase") == "backward")
    if dim.name == "burst":
        return float(row.get("run_state") == "burst")
    value = row.get(dim.name, dim.default)
    if isinstance(value, str):
        return dim.choices.index(value) if dim.choices else dim.read(value)  # type: ignore[misc]
    return value
