"""Digests of operators."""

import numpy as np

from app.ops import OPS
from app.ops.base import Op
from app.predictors.operator_digests import digests
from app.tables.ops import DTYPE_CODE, DTYPES, OpTable
from tests.unit.operators import operators


def rows(op: Op) -> OpTable:
    """One size in every dtype, in a CUDA graph and launched by the host."""
    table = operators(op.name, *({"b": 64, "h": 128, "eager": eager} for _ in DTYPES for eager in (0.0, 1.0)))
    table.dtype[:] = np.repeat([DTYPE_CODE[dtype] for dtype in DTYPES], 2)
    return table


def test_operators_of_equal_sizes_differ_by_name_dtype_and_stack() -> None:
    same_fields = [op for op in OPS[1:] if {"b", "h"} <= op.fields.keys() and op.name != "add_strided"]
    found = np.concatenate([digests(rows(op)) for op in same_fields])
    assert len(same_fields) > 15
    assert len(np.unique(found)) == len(found) == len(same_fields) * len(DTYPES) * 2
