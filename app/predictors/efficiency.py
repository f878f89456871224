"""Efficiency transfer: algorithm 1 of the cross-GPU kernels paper (section 4.0.5).

    eta = P_measured / (O_src Roof_src)        T_tgt = work / (eta O_tgt Roof_tgt)

with occupancy O and Roof = min(C, AI BW) for FLOPs > 0, BW for FLOPs = 0. Both cases are one formula: work / Roof
is the roof time max(FLOPs / C, bytes / BW), so T_tgt = T_src (roof time / O)_tgt / (roof time / O)_src. The paper
has the same work on both sides; here either side brings its own, so a kernel's efficiency also carries to another
size, as the paper's text says and its code does not do.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from app.predictors.intervals import OTHER_GPU_AND_SIZE
from app.predictors.occupancy import paper_occupancy
from app.predictors.roofline import peak_flops, work_of
from app.predictors.sources import Sources
from app.tables.gpus import COLUMN_INDEX, GpuTable
from app.tables.measurements import Evidence
from app.tables.ops import DTYPE_CODE, OpTable, concatenate
from app.tables.predictions import COMPUTE, MEMORY, Estimate

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

_FP32 = DTYPE_CODE["fp32"]
_BANDWIDTH = COLUMN_INDEX["memory_bandwidth_bytes_per_s"]
_SUSTAINED = np.array([COLUMN_INDEX["sustained_compute_flops"], COLUMN_INDEX["sustained_bandwidth_bytes_per_s"]])[
    :, None
]


def roofs(gpus: GpuTable, gpu: Ints, dtype: Ints) -> Floats:
    """Compute FLOP/s and bandwidth B/s, float64 [2, 2 n], of n sources followed by their n targets.

    Measured sustained figures (FP32) where both GPUs of a pair have them, else datasheet peaks of the dtype on both.
    """
    n = len(gpu) // 2
    peak = np.empty((2, 2 * n))
    peak[0], peak[1] = peak_flops(gpus, gpu, dtype), gpus.values[_BANDWIDTH, gpu]
    sustained = gpus.values[_SUSTAINED, gpu]
    # NaN as soon as one of a pair's four figures is.
    known = np.isfinite(sustained[:, :n] + sustained[:, n:]).all(axis=0) & (dtype[:n] == _FP32)
    return np.where(np.concatenate([known, known]), sustained, peak) if known.any() else peak


def transfer(launches: OpTable, latency_s: Floats, gpus: GpuTable, gpu: Ints) -> tuple[Floats, Ints]:
    """Seconds on the target and the code into BOUNDS of its roof, for n pairs.

    launches   2 n rows: every pair's launch as measured, then every pair's launch as asked
    latency_s  float64 [n], measured on the source
    gpu        int [2 n], rows of `gpus`: every pair's source, then every pair's target
    """
    n = len(latency_s)
    compute, bandwidth = roofs(gpus, gpu, launches.dtype)
    work = work_of(launches)
    compute_s, memory_s = work.flops / compute, work.bytes / bandwidth
    ideal_s = np.fmax(compute_s, memory_s) / paper_occupancy(launches, gpus, np.arange(2 * n), gpu)
    with np.errstate(divide="ignore", invalid="ignore"):
        predicted = latency_s * ideal_s[n:] / ideal_s[:n]
    return predicted, np.where(compute_s[n:] > memory_s[n:], COMPUTE, MEMORY)


class Efficiency:
    """The paper's analytical model; needs the kernel measured on some GPU, at this size or another."""

    name: ClassVar[str] = "efficiency"
    trainable: ClassVar[bool] = False
    needs_training: ClassVar[bool] = False

    def predict(self, ops: OpTable, gpus: GpuTable, i: Ints, j: Ints, *, evidence: Evidence) -> Estimate:
        """Transfer from each query's strongest evidence of its own kernel; several give their geometric mean."""
        sources = Sources.strongest(ops, i, j, evidence, weakest=OTHER_GPU_AND_SIZE)
        rows, query = evidence.rows.take(sources.pair), sources.query
        launches = concatenate([rows.ops, ops.take(i[query])])
        gpu = np.concatenate([rows.gpu, j[query]])
        latency, pair_bound = transfer(launches, rows.latency_s, gpus, gpu)
        bound = np.full(len(i), MEMORY)
        bound[query] = pair_bound
        return Estimate(sources.mean(latency), bound, sources.support(), sources.group)
