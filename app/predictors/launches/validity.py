"""Fast checks that launches and measured times are valid, before detailed errors are built."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from app.ops.kernel import FIELD_INDEX
from app.predictors.launches.occupancy import LIMITS, blocks_allowed
from app.predictors.roofline import GpuArrays, gpu_arrays, memory_limit_s
from app.runtime.compiled import compiled, compiled_per_row
from app.tables.arrays import Floats, Ints
from app.tables.gpus import GpuTable
from app.tables.measurements import Measurements
from app.tables.ops import OpTable

_FLOPS, _BYTES, _WORKING_SET = (FIELD_INDEX[name] for name in ("flops", "bytes", "working_set_bytes"))
_CAPS = len(LIMITS)


class _Measured(NamedTuple):
    """Measured kernels: `dims` float64 [fields, n] and `dtype` int [n] of their launches; seconds and GPU rows, [n]."""

    dims: Floats
    dtype: Ints
    latency_s: Floats
    gpu: Ints


def all_runnable(ops: OpTable, gpus: GpuTable, i: Ints, j: Ints) -> bool:
    """Return True if every kernel row `i[q]` fits on an SM of GPU row `j[q]`, and that GPU supports its dtype."""
    return bool(_all_runnable(ops.dims, ops.dtype, i, j, gpu_arrays(gpus)))


def none_below_limit(kernels: Measurements, gpus: GpuTable, tolerance: float) -> bool:
    """Return True if no kernel was measured at less than (1 - `tolerance`) times its hardware limit."""
    measured = _Measured(kernels.ops.dims, kernels.ops.dtype, kernels.latency_s, kernels.gpu)
    return bool(_none_below_limit(measured, gpu_arrays(gpus), 1.0 - tolerance))


@compiled
def _all_runnable(dims: Floats, dtype: Ints, i: Ints, j: Ints, gpus: GpuArrays) -> bool:
    caps = np.empty(_CAPS)
    for q in range(len(i)):
        row, gpu = i[q], j[q]
        if blocks_allowed(dims, row, gpus.figures, gpu, caps) < 1.0:
            return False
        if dims[_FLOPS, row] > 0.0 and np.isnan(gpus.peak[dtype[row], gpu]):
            return False
    return True


@compiled_per_row
def _none_below_limit(measured: _Measured, gpus: GpuArrays, share: float) -> bool:
    dims, latency_s = measured.dims, measured.latency_s
    for row in range(len(latency_s)):
        gpu = measured.gpu[row]
        compute_s = dims[_FLOPS, row] / gpus.peak[measured.dtype[row], gpu]
        memory_s = memory_limit_s(dims[_BYTES, row], dims[_WORKING_SET, row], gpus.figures, gpu)
        if latency_s[row] < share * compute_s or latency_s[row] < share * memory_s:
            return False
    return True
