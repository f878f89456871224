"""From a predictor's middle to a finished answer: kept over the hardware limit, with its interval."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from app.predictors.compiled import compiled
from app.predictors.intervals import NO_EVIDENCE
from app.predictors.roofline import memory_limit_s, peaks, work_of
from app.tables.gpus import GpuTable
from app.tables.ops import OpTable
from app.tables.predictions import COMPUTE, EXTRAPOLATED, MEMORY, Estimate, Predictions

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]


def finished(estimate: Estimate, ops: OpTable, gpus: GpuTable, i: Ints, j: Ints, log_offsets: Floats) -> Predictions:
    """Estimates of operator row `i[q]` on GPU row `j[q]` as answers; rows without a middle get the limit.

    `log_offsets` float64 [2, groups] are low and high in log space.
    """
    n, work = len(i), work_of(ops)
    times, codes, answered = np.empty((4, n)), np.empty((3, n), dtype=np.intp), np.empty(n, dtype=np.bool_)
    given = (estimate.latency_s, estimate.bound, estimate.support, estimate.group)
    asked = (work.flops, work.bytes, work.working_set_bytes, ops.dtype, i, j)
    _fill(given, asked, (peaks(gpus), gpus.values), log_offsets, (times, codes, answered))
    latency, low, high, limit_s = times
    bound, support, group = codes
    return Predictions(latency, low, high, limit_s, bound, support, group, answered)


@compiled
def _fill(
    given: tuple[Floats, Ints, Ints, Ints],
    asked: tuple[Floats, Floats, Floats, Ints, Ints, Ints],
    devices: tuple[Floats, Floats],
    log_offsets: Floats,
    out: tuple[Floats, Ints, NDArray[np.bool_]],
) -> None:
    middle, bound, support, group = given
    flops, moved, working_set, dtype, i, j = asked
    peak, figures = devices
    times, codes, answered = out
    for q in range(len(middle)):
        row, gpu = i[q], j[q]
        compute_s = flops[row] / peak[dtype[row], gpu]
        memory_s = memory_limit_s(moved[row], working_set[row], figures, gpu)
        by_compute = compute_s > memory_s  # False for NaN: a dtype that the GPU lacks bounds nothing
        limit = compute_s if by_compute else memory_s
        answered[q] = np.isfinite(middle[q])
        over = answered[q] and middle[q] >= limit
        latency = middle[q] if over else limit
        codes[0, q] = bound[q] if over else (COMPUTE if by_compute else MEMORY)
        codes[1, q] = support[q] if answered[q] else EXTRAPOLATED
        codes[2, q] = group[q] if answered[q] else NO_EVIDENCE
        times[0, q] = latency
        times[1, q] = max(latency * np.exp(log_offsets[0, codes[2, q]]), limit)
        times[2, q] = latency * np.exp(log_offsets[1, codes[2, q]])
        times[3, q] = limit
