"""Digests of operators."""

import numpy as np
import pytest

from app.ops import OPS
from app.ops.base import Op
from app.predictors.operator_digests import digests, first_seen
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


# Small digests all begin in slot 0, so that each is looked for behind the others.
@pytest.mark.parametrize("spread", [1, 2**50])
def test_equal_digests_share_one_row(spread: int) -> None:
    digest = np.random.default_rng(3).integers(0, 40, 100).astype(np.uint64) * np.uint64(spread)
    seen = first_seen(digest)
    assert sorted(digest[seen.first].tolist()) == np.unique(digest).tolist()
    assert digest[seen.first][seen.of].tolist() == digest.tolist()
    assert all(not (digest[:first] == digest[first]).any() for first in seen.first)
