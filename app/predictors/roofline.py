"""The hardware limit: a lower bound of every launch's time.

limit = max(FLOPs / peak of the pipe, bytes / L2 bandwidth, bytes that do not fit into the L2 / DRAM bandwidth), the
roofline of Williams et al. (2009) with a second roof for the L2; for collectives also bytes sent / link bandwidth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from app.bands.groups import NO_EVIDENCE
from app.ops import demands_of, kinds_of, work_of
from app.ops.figures import Work
from app.predictors.base import Capabilities
from app.predictors.links import by_link
from app.runtime.compiled import compiled_per_row
from app.tables.arrays import Floats, Ints
from app.tables.gpus import COLUMN_INDEX, GpuTable, once_per_table
from app.tables.measurements import Evidence
from app.tables.ops import DTYPE_CODE, DTYPES, WEIGHT_ONLY_DTYPES, OpTable
from app.tables.predictions import COMMUNICATION, COMPUTE, EXTRAPOLATED, MEMORY, Estimate

# The fastest pipe of a dtype bounds it: a kernel may use tensor cores without declaring it.
PIPES_OF_DTYPE = {
    "fp64": ("fp64", "fp64_tensor"),
    "fp32": ("fp32", "fp32_tensor"),
    "tf32": ("tf32_tensor",),
    "fp16": ("fp16", "fp16_tensor"),
    "bf16": ("bf16", "bf16_tensor"),
    "fp8": ("fp8_tensor",),
    "fp8_block": ("fp8_tensor",),
    "int8": ("int8", "int8_tensor"),
    "nvfp4": ("fp4_tensor",),
    # Weights of few bits are widened to the activations' format.
    **dict.fromkeys(WEIGHT_ONLY_DTYPES, ("bf16", "bf16_tensor", "fp16", "fp16_tensor")),
    "w4a16_mxfp4": ("bf16", "bf16_tensor"),
    "w4a8_mxfp4": ("fp8_tensor",),
    "w4a8_mxfp4_mxfp8": ("fp8_tensor",),
    "mxfp4": ("fp4_tensor",),
    "mxfp6": ("fp8_tensor",),
}
# Formats that stand for one that a GPU lacks where nobody asked for it, the first that it has.
# vLLM runs checkpoints in FP8 and NVFP4 by Marlin's kernels there, which read the weights in these and multiply in
# 16 bits.
_INSTEAD = {
    "bf16": ("fp16", "fp32"),
    "fp16": ("fp32",),
    "tf32": ("fp32",),
    "fp8": ("fp8_wo",),
    "fp8_block": ("fp8_wo",),
    "nvfp4": ("int4_wo",),
    "mxfp4": ("int4_wo",),
    **dict.fromkeys(("w4a8_mxfp4", "w4a8_mxfp4_mxfp8"), ("w4a16_mxfp4",)),
}
_SIX_BITS, _FAST_SIX_BITS = "mxfp6", "cdna 4/"
_COLUMNS = [[COLUMN_INDEX[f"peak_{pipe}_flops"] for pipe in PIPES_OF_DTYPE[dtype]] for dtype in DTYPES]
_FROM_FP16, _FP32 = [DTYPE_CODE[dtype] for dtype in ("fp16", *WEIGHT_ONLY_DTYPES)], DTYPE_CODE["fp32"]
_L2 = COLUMN_INDEX["l2_bytes"]
_L2_BANDWIDTH = COLUMN_INDEX["l2_bandwidth_bytes_per_s"]
_BANDWIDTH = COLUMN_INDEX["memory_bandwidth_bytes_per_s"]
_LINK = COLUMN_INDEX["link_bandwidth_bytes_per_s"]


def rate_share(gpus: GpuTable, dtype: str) -> Floats:
    """Return the rate of a dtype's products over that of its pipes, [gpus]: 1 but of six bits where four are as fast.

    CDNA 4 multiplies MXFP6 as fast as MXFP4, twice as fast as FP8 (AMD's white paper, 2025); Blackwell as FP8.
    """
    made = gpus.architectures or ("",) * len(gpus)
    return np.array([2.0 if dtype == _SIX_BITS and name.startswith(_FAST_SIX_BITS) else 1.0 for name in made])


@once_per_table
def peaks(gpus: GpuTable) -> Floats:
    """Return the peak of the fastest pipe per dtype, FLOP/s [dtypes, gpus]."""
    peak: Floats = np.stack([np.fmax.reduce(gpus.values[columns]) for columns in _COLUMNS])
    # If the FP16 pipe is slower than FP32 (compute capability 6.1), kernels convert and compute in FP32.
    peak[_FROM_FP16] = np.maximum(peak[_FROM_FP16], peak[_FP32])
    peak[DTYPE_CODE[_SIX_BITS]] *= rate_share(gpus, _SIX_BITS)
    return peak


def peak_flops(gpus: GpuTable, j: Ints, dtype: Ints) -> Floats:
    """Return the dense peak of the fastest pipe for `dtype[q]` on GPU row `j[q]`, FLOP/s [n]; NaN if unsupported."""
    peak: Floats = peaks(gpus)[dtype, j]
    return peak


@once_per_table
def formats_run(gpus: GpuTable) -> Ints:
    """Return the format that stands for each one on every GPU, its own where the GPU has it, int [dtypes, gpus]."""
    lacking = np.isnan(peaks(gpus))
    run = np.tile(np.arange(len(DTYPES))[:, None], (1, len(gpus)))
    for dtype, others in _INSTEAD.items():
        for other in map(DTYPE_CODE.__getitem__, reversed(others)):
            code = DTYPE_CODE[dtype]
            run[code] = np.where(lacking[code] & ~lacking[other], other, run[code])
    return run


class GpuArrays(NamedTuple):
    """A GPU table for compiled code: `peak` float64 [dtypes, gpus] as `peaks`, `figures` float64 [columns, gpus]."""

    peak: Floats
    figures: Floats


@once_per_table
def gpu_arrays(gpus: GpuTable) -> GpuArrays:
    """Return the arrays of a table for compiled code."""
    return GpuArrays(peaks(gpus), gpus.values)


@once_per_table
def boosted_arrays(gpus: GpuTable) -> GpuArrays:
    """Return the arrays of a table whose GPUs run at their highest clocks, not at those of their data sheets."""
    return GpuArrays(peaks(gpus) * gpus.column("boost_share"), gpus.values)


class _Queries(NamedTuple):
    """n queries: dtype codes of all operator rows, and operator row `i[q]` and GPU row `j[q]` of each query."""

    dtype: Ints
    i: Ints
    j: Ints


@dataclass(frozen=True, slots=True)
class Limit:
    """Hardware limit of n rows.

    latency_s  float64 [n], seconds; an unsupported dtype has no compute limit
    bound      int [n], code into BOUNDS of the roof that sets the limit
    roof_s     float64 [n], the same at the clock of the data sheet, which answers where no predictor does; None: alike
    """

    latency_s: Floats
    bound: Ints
    roof_s: Floats | None = None


@compiled_per_row
def memory_limit_s(moved: float, working_set: float, figures: Floats, gpu: int) -> float:
    """Return the least seconds for `moved` bytes: all pass the L2, and those that do not fit into it come from DRAM."""
    spilled = min(moved, max(working_set - figures[_L2, gpu], 0.0))
    return float(max(moved / figures[_L2_BANDWIDTH, gpu], spilled / figures[_BANDWIDTH, gpu]))


@compiled_per_row
def _fill(work: Work, queries: _Queries, gpus: GpuArrays, latency_s: Floats, bound: Ints) -> None:
    for q in range(len(latency_s)):
        row, gpu = queries.i[q], queries.j[q]
        compute_s = work.flops[row] / gpus.peak[queries.dtype[row], gpu]
        memory_s = memory_limit_s(work.bytes[row], work.working_set_bytes[row], gpus.figures, gpu)
        by_compute = compute_s > memory_s  # False for NaN
        latency_s[q] = compute_s if by_compute else memory_s
        bound[q] = COMPUTE if by_compute else MEMORY


def hardware_limit(ops: OpTable, gpus: GpuTable, i: Ints, j: Ints) -> Limit:
    """Return the limit of operator row `i[q]` on GPU row `j[q]`, at the highest clock of the GPU."""
    return _limit(ops, gpus, i, j, boosted_arrays(gpus))


def roofline(ops: OpTable, gpus: GpuTable, i: Ints, j: Ints) -> Limit:
    """Return the limit of operator row `i[q]` on GPU row `j[q]`, at the clock of the data sheet."""
    return _limit(ops, gpus, i, j, gpu_arrays(gpus))


def _limit(ops: OpTable, gpus: GpuTable, i: Ints, j: Ints, arrays: GpuArrays) -> Limit:
    demands = demands_of(ops, kinds_of(ops))
    work = demands.work._replace(flops=demands.least_flops)
    limit = Limit(np.empty(len(i)), np.empty(len(i), dtype=np.intp))
    _fill(work, _Queries(ops.dtype, i, j), arrays, limit.latency_s, limit.bound)
    if demands.sent is not None:
        link_s = np.nan_to_num(demands.sent[i] / gpus.values[_LINK, j])  # an unknown link has no limit
        limit.bound[link_s > limit.latency_s] = COMMUNICATION
        np.maximum(limit.latency_s, link_s, out=limit.latency_s)
    return limit


def limiting_figures(ops: OpTable, gpus: GpuTable, i: Ints, j: Ints) -> list[str]:
    """Return the GPU's figure that sets each limit: a field of `GpuSpec`, or "peak_flops.PIPE"."""
    bound = hardware_limit(ops, gpus, i, j).bound
    figures = gpu_arrays(gpus).figures
    work = work_of(ops, kinds_of(ops))
    names = []
    for row, gpu, roof in zip(i.tolist(), j.tolist(), bound.tolist(), strict=True):
        spilled = min(work.bytes[row], max(work.working_set_bytes[row] - figures[_L2, gpu], 0.0))
        by_memory = spilled / figures[_BANDWIDTH, gpu] > work.bytes[row] / figures[_L2_BANDWIDTH, gpu]
        memory = "memory_bandwidth_bytes_per_s" if by_memory else "l2_bandwidth_bytes_per_s"
        roofs = {COMPUTE: _pipe(ops, gpus, row, gpu), MEMORY: memory, COMMUNICATION: "link_bandwidth_bytes_per_s"}
        names.append(roofs[roof])
    return names


def _pipe(ops: OpTable, gpus: GpuTable, row: int, gpu: int) -> str:
    """Return the fastest pipe of a row's dtype, as "peak_flops.PIPE"."""
    pipes = PIPES_OF_DTYPE[DTYPES[ops.dtype[row]]]
    rates = [np.nan_to_num(gpus.values[COLUMN_INDEX[f"peak_{pipe}_flops"], gpu]) for pipe in pipes]
    return f"peak_flops.{pipes[int(np.argmax(rates))]}"


class Roofline:
    """The hardware limit at the clock of the data sheet as a predictor: optimistic, needs no measurements."""

    name: ClassVar[str] = "roofline"
    can: ClassVar[Capabilities] = Capabilities(("launches", "operators"))

    def predict(self, ops: OpTable, gpus: GpuTable, i: Ints, j: Ints, *, evidence: Evidence) -> Estimate:
        """Return the limit of every query; evidence is not used."""
        gpus, j = by_link(ops, gpus, i, j)
        limit = roofline(ops, gpus, i, j)
        n = len(i)
        return Estimate(limit.latency_s, limit.bound, np.full(n, EXTRAPOLATED), np.full(n, NO_EVIDENCE))
