"""Efficiency transfer: algorithm 1 of the cross-GPU kernels paper (section 4.0.5).

    eta = P_measured / (O_src Roof_src)        T_tgt = work / (eta O_tgt Roof_tgt)

with occupancy O and Roof = min(C, AI BW) for FLOPs > 0, BW for FLOPs = 0. Both cases are one formula: work / Roof
is the roof time max(FLOPs / C, bytes / BW), so T_tgt = T_src (roof time / O)_tgt / (roof time / O)_src. The paper
has the same work on both sides; here each side has its own, so a kernel's efficiency also transfers to another size,
as the paper's text says but its code does not do.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np

from app.bands.groups import OTHER_GPU_AND_SIZE
from app.ops.kernel import FIELD_INDEX
from app.predictors.base import Capabilities
from app.predictors.launches.occupancy import paper_occupancy
from app.predictors.launches.strongest_evidence import Sources
from app.predictors.roofline import GpuArrays, gpu_arrays
from app.runtime.compiled import compiled
from app.tables.arrays import Floats, Ints
from app.tables.gpus import COLUMN_INDEX, GpuTable
from app.tables.measurements import Evidence
from app.tables.ops import DTYPE_CODE, OpTable, concatenate
from app.tables.predictions import COMPUTE, MEMORY, Estimate

_FP32 = DTYPE_CODE["fp32"]
_FLOPS, _BYTES = FIELD_INDEX["flops"], FIELD_INDEX["bytes"]
_BANDWIDTH = COLUMN_INDEX["memory_bandwidth_bytes_per_s"]
_SUSTAINED_COMPUTE = COLUMN_INDEX["sustained_compute_flops"]
_SUSTAINED_BANDWIDTH = COLUMN_INDEX["sustained_bandwidth_bytes_per_s"]


class _Pairs(NamedTuple):
    """n pairs of a measured launch and the launch to predict, rows as in `transfer`.

    dims       float64 [fields, 2 n]
    dtype      int [2 n]
    gpu        int [2 n]
    latency_s  float64 [n]
    """

    dims: Floats
    dtype: Ints
    gpu: Ints
    latency_s: Floats


@compiled
def _fill(pairs: _Pairs, gpus: GpuArrays, predicted: Floats, bound: Ints) -> None:
    """Fill `predicted` [n], seconds, and `bound` [n], codes into BOUNDS, for every pair."""
    dims, dtype, gpu, figures, n = pairs.dims, pairs.dtype, pairs.gpu, gpus.figures, len(pairs.latency_s)
    for pair in range(n):
        source, target = gpu[pair], gpu[n + pair]
        known = figures[_SUSTAINED_COMPUTE, source] + figures[_SUSTAINED_COMPUTE, target]
        known += figures[_SUSTAINED_BANDWIDTH, source] + figures[_SUSTAINED_BANDWIDTH, target]
        sustained = not np.isnan(known) and dtype[n + pair] == _FP32  # NaN if any of the four is
        ideal_s = np.empty(2)
        for side in range(2):
            row = side * n + pair
            compute, bandwidth = gpus.peak[dtype[row], gpu[row]], figures[_BANDWIDTH, gpu[row]]
            if sustained:
                compute, bandwidth = figures[_SUSTAINED_COMPUTE, gpu[row]], figures[_SUSTAINED_BANDWIDTH, gpu[row]]
            compute_s, memory_s = dims[_FLOPS, row] / compute, dims[_BYTES, row] / bandwidth
            bound[pair] = COMPUTE if compute_s > memory_s else MEMORY
            roof_s = compute_s if compute_s > memory_s else memory_s
            ideal_s[side] = roof_s / paper_occupancy(dims, row, figures, gpu[row])
        predicted[pair] = pairs.latency_s[pair] * ideal_s[1] / ideal_s[0]


def transfer(launches: OpTable, latency_s: Floats, gpus: GpuTable, gpu: Ints) -> tuple[Floats, Ints]:
    """Return the seconds on the target GPU, and the code into BOUNDS of its roof, for n pairs.

    launches   2 n rows: every pair's measured launch, then every pair's launch to predict
    latency_s  float64 [n], measured seconds on the source GPU
    gpu        int [2 n], rows of `gpus`: every pair's source, then every pair's target

    Roofs are measured sustained figures (FP32) if both GPUs of a pair have them, else datasheet peaks on both.
    """
    predicted, bound = np.empty(len(latency_s)), np.empty(len(latency_s), dtype=np.intp)
    _fill(_Pairs(launches.dims, launches.dtype, gpu, latency_s), gpu_arrays(gpus), predicted, bound)
    return predicted, bound


class Efficiency:
    """The paper's analytical model; needs a measurement of the kernel on some GPU, at this size or another."""

    name: ClassVar[str] = "efficiency"
    can: ClassVar[Capabilities] = Capabilities(("launches",))

    def predict(self, ops: OpTable, gpus: GpuTable, i: Ints, j: Ints, *, evidence: Evidence) -> Estimate:
        """Return the transfer from each query's strongest evidence of its kernel; the geometric mean of several."""
        sources = Sources.strongest(ops, i, j, evidence, weakest=OTHER_GPU_AND_SIZE)
        rows, query = evidence.rows.take(sources.pair), sources.query
        launches = concatenate([rows.ops, ops.take(i[query])])
        gpu = np.concatenate([rows.gpu, j[query]])
        latency, pair_bound = transfer(launches, rows.latency_s, gpus, gpu)
        bound = np.full(len(i), MEMORY)
        bound[query] = pair_bound
        return Estimate(sources.mean(latency), bound, sources.support(), sources.group)
