"""Algorithm 1 of the cross-GPU kernels paper against hand calculations."""

import numpy as np
import pytest

from app.bands.groups import EXACT, NO_EVIDENCE, OTHER_GPU, OTHER_GPU_AND_SIZE
from app.predictors.papers.cross_gpu_kernels import Efficiency
from app.tables.gpus import GpuTable
from app.tables.predictions import COMPUTE, EXTRAPOLATED, INTERPOLATED, MEASURED, MEMORY, Estimate
from tests.unit.kernels import TURING, VOLTA, evidence, index, kernels, measured_gpu

GPUS = GpuTable.from_specs([TURING, VOLTA])
COPY = {"flops": 0.0, "bytes": 1.2e9, "threads_per_block": 256, "registers_per_thread": 16}
MATMUL = {**COPY, "flops": 1e12, "bytes": 1e9}  # 1000 FLOP/B: compute-bound on both


def predict(query: dict[str, float], *, dtype: str = "fp32", gpus: GpuTable = GPUS, **measured: float) -> Estimate:
    """`query` on GPU 1, given 4 ms on GPU 0 of the same launch with the fields of `measured` overridden."""
    rows = kernels([{**query, **measured}], dtype=dtype)
    return Efficiency().predict(
        kernels([query], dtype=dtype), gpus, index(0), index(1), evidence=evidence(rows, [0], [4e-3], [0])
    )


def test_memory_bound_kernels_scale_by_bandwidth() -> None:
    # eta = 1.2e9 / 4 ms / 600 GB/s = 0.5; 1.2e9 / (0.5 x 900 GB/s) = 2.667 ms. Both occupancies are 1.
    estimate = predict(COPY)
    assert estimate.latency_s == pytest.approx([8e-3 / 3], rel=1e-12)
    assert (estimate.bound[0], estimate.support[0], estimate.group[0]) == (MEMORY, INTERPOLATED, OTHER_GPU)


def test_compute_bound_kernels_scale_by_peak() -> None:
    # Roof 12 and 15 TFLOP/s: 4 ms x 12 / 15 = 3.2 ms.
    estimate = predict(MATMUL)
    assert estimate.latency_s == pytest.approx([3.2e-3], rel=1e-12)
    assert estimate.bound[0] == COMPUTE


def test_the_peak_is_that_of_the_dtype() -> None:
    # 24 over 30 TFLOP/s in half precision.
    assert predict(MATMUL, dtype="fp16").latency_s == pytest.approx([3.2e-3], rel=1e-12)


def test_the_bound_may_change_between_gpus() -> None:
    # 18 FLOP/B: source roof min(12, 18 x 0.6) = 10.8, target roof min(15, 18 x 0.9) = 15 TFLOP/s.
    estimate = predict({**COPY, "flops": 18e9, "bytes": 1e9})
    assert estimate.latency_s == pytest.approx([4e-3 * 10.8 / 15], rel=1e-12)
    assert estimate.bound[0] == COMPUTE


def test_occupancy_ratio() -> None:
    # 33 registers x 256 threads: floor(65536 / 8448) = 7 blocks; Turing holds 4 by threads: 1.0; Volta 7 of 8.
    estimate = predict({**COPY, "registers_per_thread": 33})
    assert estimate.latency_s == pytest.approx([8e-3 / 3 * 8 / 7], rel=1e-12)


def test_occupancy_uses_the_registers_of_each_gpu() -> None:
    # Measured with 128 registers: 2 of 4 blocks on Turing, O = 0.5; asked with 16, O = 1 on Volta.
    estimate = predict(COPY, registers_per_thread=128)
    assert estimate.latency_s == pytest.approx([8e-3 / 3 * 0.5], rel=1e-12)
    assert estimate.group[0] == OTHER_GPU


def test_other_sizes_keep_the_efficiency() -> None:
    # Measured at a quarter of the bytes in 4 ms: eta = 0.125; 1.2e9 / (0.125 x 900 GB/s) = 10.667 ms.
    estimate = predict(COPY, bytes=0.3e9)
    assert estimate.latency_s == pytest.approx([32e-3 / 3], rel=1e-12)
    assert (estimate.support[0], estimate.group[0]) == (EXTRAPOLATED, OTHER_GPU_AND_SIZE)


def test_sustained_figures_only_where_both_gpus_have_them() -> None:
    turing = measured_gpu(TURING, compute=10e12, bandwidth=500e9)
    volta = measured_gpu(VOLTA, compute=12e12, bandwidth=800e9)
    both, one = GpuTable.from_specs([turing, volta]), GpuTable.from_specs([turing, VOLTA])
    assert predict(MATMUL, gpus=both).latency_s == pytest.approx([4e-3 * 10 / 12], rel=1e-12)
    assert predict(COPY, gpus=both).latency_s == pytest.approx([4e-3 * 5 / 8], rel=1e-12)
    assert predict(MATMUL, gpus=one).latency_s == pytest.approx([3.2e-3], rel=1e-12)
    # Sustained compute is an FP32 figure.
    assert predict(MATMUL, gpus=both, dtype="fp16").latency_s == pytest.approx([3.2e-3], rel=1e-12)


def test_several_sources_give_their_geometric_mean() -> None:
    ops = kernels([COPY])
    rows = kernels([COPY, COPY, {**COPY, "bytes": 1.0}])
    found = Efficiency().predict(
        ops, GPUS, index(0), index(1), evidence=evidence(rows, [0, 0, 0], [4e-3, 9e-3, 1.0], [0, 0, 0])
    )
    # The row of another size is weaker evidence and does not count.
    assert found.latency_s == pytest.approx([6e-3 * 2 / 3], rel=1e-12)


def test_exact_measurement_is_returned() -> None:
    rows = kernels([COPY, COPY])
    found = Efficiency().predict(
        kernels([COPY]), GPUS, index(0), index(1), evidence=evidence(rows, [1, 0], [3e-3, 9e-3], [0, 0])
    )
    assert found.latency_s == pytest.approx([3e-3], rel=1e-12)
    assert (found.support[0], found.group[0]) == (MEASURED, EXACT)


def test_no_support_without_the_same_kernel_or_without_work() -> None:
    idle = {**COPY, "bytes": 0.0}
    ops = kernels([COPY, COPY, idle, COPY], label=[1, 2, 3, 4])
    rows = kernels([COPY, idle, COPY], label=[9, 3, 4])
    found = Efficiency().predict(
        ops, GPUS, index(0, 1, 2, 3), index(1, 1, 1, 0), evidence=evidence(rows, [0, 0, 1], [4e-3] * 3, [1, 2, 3])
    )
    assert np.isnan(found.latency_s).tolist() == [True, True, True, False]
    assert found.group.tolist() == [NO_EVIDENCE, NO_EVIDENCE, OTHER_GPU, OTHER_GPU]
    assert found.latency_s[3] == pytest.approx(6e-3, rel=1e-12)


def test_no_evidence_at_all() -> None:
    none = evidence(kernels([]), [], [], [])
    found = Efficiency().predict(kernels([COPY]), GPUS, index(0), index(1), evidence=none)
    assert np.isnan(found.latency_s).all()
    assert found.group.tolist() == [NO_EVIDENCE]
