"""Small hand-made kernels and GPUs for unit tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from app.ops.kernel import FIELD_INDEX, FIELDS, GIVEN
from app.tables.gpus import GpuSpec
from app.tables.measurements import Evidence, Measurements
from app.tables.ops import DTYPE_CODE, OpTable
from app.wire.kernel_tables import fill_figures

TURING = GpuSpec(
    id="turing",
    name="Turing",
    vendor="nvidia",
    architecture="turing",
    sm_count=68,
    fp32_lanes_per_sm=64,
    boost_clock_hz=1.545e9,
    memory_bytes=11e9,
    memory_bandwidth_bytes_per_s=600e9,
    l2_bytes=5.5e6,
    l2_bandwidth_bytes_per_s=2e12,
    registers_per_sm=65536,
    max_registers_per_thread=255,
    shared_memory_per_sm_bytes=65536,
    shared_memory_per_block_bytes=65536,
    max_threads_per_sm=1024,
    max_threads_per_block=1024,
    max_blocks_per_sm=16,
    warp_size=32,
    register_allocation_unit=256,
    shared_memory_allocation_unit_bytes=256,
    peak_flops={"fp32": 12e12, "fp16": 24e12},
)
VOLTA = replace(
    TURING,
    id="volta",
    memory_bandwidth_bytes_per_s=900e9,
    max_threads_per_sm=2048,
    max_blocks_per_sm=32,
    shared_memory_per_sm_bytes=98304,
    peak_flops={"fp32": 15e12, "fp16": 30e12},
)


def measured_gpu(spec: GpuSpec, *, compute: float, bandwidth: float) -> GpuSpec:
    """The same GPU with sustained figures, FLOP/s and B/s."""
    return replace(spec, sustained_compute_flops=compute, sustained_bandwidth_bytes_per_s=bandwidth)


def kernels(rows: Sequence[Mapping[str, float]], *, label: Sequence[int] | None = None, dtype: str = "fp32") -> OpTable:
    """A table of launches from the fields given; `label` defaults to one kernel."""
    figures = [[row.get(name) for name in GIVEN] for row in rows]
    dims = np.empty((len(FIELDS), len(rows)))
    fill_figures(np.array(figures, dtype=np.float64).tobytes(), dims)
    zeros = np.zeros(len(rows), dtype=np.intp)
    labels = zeros if label is None else np.array(label, dtype=np.intp)
    return OpTable(zeros, zeros + DTYPE_CODE[dtype], labels, FIELD_INDEX, dims)


def evidence(ops: OpTable, gpu: Sequence[int], latency_s: Sequence[float], query: Sequence[int]) -> Evidence:
    """Measured rows and the queries that they bear on."""
    rows = Measurements(ops, np.array(gpu, dtype=np.intp), np.array(latency_s, dtype=np.float64))
    return Evidence(rows, np.array(query, dtype=np.intp))


def index(*values: int) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """An index vector."""
    return np.array(values, dtype=np.intp)
