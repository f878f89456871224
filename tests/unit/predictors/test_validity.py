"""The fast validity checks of launches and measured times, against a calculation by hand."""

from dataclasses import replace

import numpy as np

from app.predictors.launches import all_runnable, none_below_limit
from app.tables.gpus import GpuTable
from app.tables.measurements import Measurements
from tests.unit.kernels import TURING, VOLTA, kernels

LAUNCH = {"flops": 1.2e9, "bytes": 6e5, "blocks": 64.0, "threads_per_block": 256.0, "registers_per_thread": 32.0}
GPUS = GpuTable.from_specs([TURING, replace(VOLTA, peak_flops={"fp16": 30e12})])


def runnable(row: dict[str, float], gpu: int) -> bool:
    one = np.zeros(1, dtype=np.intp)
    return all_runnable(kernels([row]), GPUS, one, one + gpu)


def test_a_launch_is_valid_if_a_block_fits_and_the_dtype_is_known() -> None:
    assert runnable(LAUNCH, 0)
    assert not runnable(LAUNCH | {"shared_memory_per_block": 70_000.0}, 0)
    assert not runnable(LAUNCH, 1)
    assert runnable(LAUNCH | {"flops": 0.0}, 1)


def below(latency_s: float, **more: float) -> bool:
    rows = Measurements(kernels([LAUNCH | more]), np.zeros(1, dtype=np.intp), np.array([latency_s]))
    return not none_below_limit(rows, GPUS, 0.05)


def test_times_below_the_limit_are_invalid() -> None:
    # 1.2 GFLOP at 12 TFLOP/s take 100 us, 6 GB at 600 GB/s 10 ms.
    assert not below(96e-6)
    assert below(94e-6)
    assert not below(9.6e-3, bytes=6e9)
    assert below(9.4e-3, bytes=6e9)
