"""Whether anything is wrong at all with launches and measured times: one quick look before anyone says what."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from app.ops.kernel import FIELD_INDEX
from app.predictors.launches.occupancy import LIMITS, blocks_allowed
from app.predictors.roofline import memory_limit_s, peaks
from app.runtime.compiled import compiled
from app.tables.gpus import GpuTable
from app.tables.measurements import Measurements
from app.tables.ops import OpTable

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

_FLOPS, _BYTES, _WORKING_SET = (FIELD_INDEX[name] for name in ("flops", "bytes", "working_set_bytes"))
_CAPS = len(LIMITS)


def all_run(ops: OpTable, gpus: GpuTable, i: Ints, j: Ints) -> bool:
    """Whether every kernel row `i[q]` fits on an SM of GPU row `j[q]`, and that GPU computes in its dtype."""
    return bool(_all_run(ops.dims, ops.dtype, i, gpus.values, peaks(gpus), j))


def none_under_limit(kernels: Measurements, gpus: GpuTable, tolerance: float) -> bool:
    """Whether no kernel was measured at less than (1 - `tolerance`) times its hardware limit."""
    ops = kernels.ops
    times = (kernels.latency_s, 1.0 - tolerance)
    return bool(_none_under_limit(ops.dims, ops.dtype, times, gpus.values, peaks(gpus), kernels.gpu))


@compiled
def _all_run(dims: Floats, dtype: Ints, i: Ints, figures: Floats, peak: Floats, j: Ints) -> bool:
    caps = np.empty(_CAPS)
    for q in range(len(i)):
        row, gpu = i[q], j[q]
        if blocks_allowed(dims, row, figures, gpu, caps) < 1.0:
            return False
        if dims[_FLOPS, row] > 0.0 and np.isnan(peak[dtype[row], gpu]):
            return False
    return True


@compiled
def _none_under_limit(
    dims: Floats, dtype: Ints, times: tuple[Floats, float], figures: Floats, peak: Floats, gpu: Ints
) -> bool:
    latency_s, share = times
    for row in range(len(gpu)):
        compute_s = dims[_FLOPS, row] / peak[dtype[row], gpu[row]]
        memory_s = memory_limit_s(dims[_BYTES, row], dims[_WORKING_SET, row], figures, gpu[row])
        if latency_s[row] < share * compute_s or latency_s[row] < share * memory_s:
            return False
    return True
