"""What every operator family keeps to."""

from typing import Any

import numpy as np
import pytest

from app.ops import OPS
from app.ops.base import Op
from app.predictors.roofline import hardware_limit
from app.tables.gpus import GpuTable
from tests.unit.kernels import TURING, VOLTA, kernels

GPUS = GpuTable.from_specs([TURING, VOLTA])
# Per family: rows to try, and the dims of which more can only be more work.
CASES: dict[str, tuple[Any, tuple[str, ...]]] = {
    "kernel": (
        [
            {"flops": f, "bytes": b, "working_set_bytes": b, "threads_per_block": 256, "blocks": 64}
            for f in (0, 1e3, 1e9)
            for b in (1e3, 1e7, 1e10)
        ],
        ("flops", "bytes", "working_set_bytes"),
    ),
}


@pytest.fixture(params=OPS, ids=lambda op: op.name)
def op(request: pytest.FixtureRequest) -> Op:
    return request.param


def test_one_row_equals_a_thousand(op: Op) -> None:
    table = kernels(CASES[op.name][0])
    rows = np.tile(np.arange(len(table)), 1000)
    for alone, many in zip(op.work(table), op.work(table.take(rows)), strict=True):
        np.testing.assert_array_equal(np.tile(alone, 1000), many)


def test_work_is_finite_and_not_negative(op: Op) -> None:
    for column in op.work(kernels(CASES[op.name][0])):
        assert (np.isfinite(column) & (column >= 0)).all()


def test_more_of_anything_is_no_less_time(op: Op) -> None:
    rows, growing = CASES[op.name]
    every = np.arange(len(rows))
    for gpu in range(len(GPUS)):
        on = np.full(len(rows), gpu)
        before = hardware_limit(kernels(rows), GPUS, every, on).latency_s
        for name in growing:
            more = [row | {name: 2 * row[name] + 1} for row in rows]
            assert (hardware_limit(kernels(more), GPUS, every, on).latency_s >= before).all(), name
