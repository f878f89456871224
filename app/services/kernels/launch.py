"""Check whether a launch can run on a GPU, and name the limits it exceeds."""

from __future__ import annotations

from math import ceil

import numpy as np

from app.errors import FieldError
from app.ops.kernel import FIELD_INDEX
from app.predictors.launches import LAUNCH_FIELDS, warps_held
from app.predictors.roofline import peak_flops
from app.tables.arrays import Ints
from app.tables.gpus import COLUMN_INDEX, GpuTable
from app.tables.ops import DTYPES, OpTable

_LAUNCH = np.array([FIELD_INDEX[name] for name in (*LAUNCH_FIELDS, "flops")])
_LIMIT_NAMES = (
    "max_threads_per_block",
    "max_threads_per_sm",
    "max_registers_per_thread",
    "registers_per_sm",
    "register_allocation_unit",
    "warp_size",
    "shared_memory_per_block_bytes",
    "shared_memory_per_sm_bytes",
    "shared_memory_allocation_unit_bytes",
)


def check_launch(ops: OpTable, gpus: GpuTable, i: Ints, j: Ints) -> list[list[FieldError]]:
    """Return the reasons why operator row `i[q]` cannot run on GPU row `j[q]`: one list per query, empty if it can.

    `loc` of an error is the field of the workload that exceeds the limit. Absent limits (NaN) do not apply.
    """
    columns = np.array([COLUMN_INDEX[name] for name in _LIMIT_NAMES])
    launches, limits = ops.dims[_LAUNCH[:, None], i].T.tolist(), gpus.values[columns[:, None], j].T.tolist()
    unsupported = np.isnan(peak_flops(gpus, j, ops.dtype[i])).tolist()
    return [
        _exceeded_limits(gpus.ids[gpu], launch, limit)
        + _unsupported_dtype(gpus.ids[gpu], launch[-1], missing, ops.dtype[row])
        for row, gpu, launch, limit, missing in zip(i, j, launches, limits, unsupported, strict=True)
    ]


def _unsupported_dtype(gpu: str, flops: float, unsupported: bool, dtype: int) -> list[FieldError]:
    if not unsupported or not flops > 0:
        return []
    return [FieldError(("dtype",), f"{gpu} does not compute in {DTYPES[dtype]}")]


def _exceeded_limits(gpu: str, launch: list[float], limit: list[float]) -> list[FieldError]:
    threads, registers, shared, _ = launch
    block_threads, sm_threads, thread_registers, file, unit, warp, block_shared, sm_shared, shared_unit = limit
    errors = []
    if threads > block_threads or threads > sm_threads:
        most = block_threads if threads > block_threads else sm_threads
        errors.append(_error("threads_per_block", threads, most, gpu, "threads per block"))
    if registers > thread_registers:
        errors.append(_error("registers_per_thread", registers, thread_registers, gpu, "registers per thread"))
    elif not errors and threads > (most := warps_held(registers, file, unit, warp) * warp):
        text = f"threads of {registers:,.0f} registers are at most {most:,.0f} per block, not {threads:,.0f}"
        errors.append(FieldError(("registers_per_thread",), f"{text}; the register file of {gpu} has {file:,.0f}"))
    if shared > block_shared:
        errors.append(_error("shared_memory_per_block", shared, block_shared, gpu, "bytes of shared memory per block"))
    elif _rounded(shared, shared_unit) > sm_shared:
        errors.append(_error("shared_memory_per_block", shared, sm_shared, gpu, "bytes of shared memory per SM"))
    return errors


def _error(field: str, value: float, most: float, gpu: str, what: str) -> FieldError:
    return FieldError((field,), f"{value:,.0f} is over the limit of {gpu}: at most {most:,.0f} {what}")


def _rounded(value: float, unit: float) -> float:
    return ceil(value / unit) * unit if unit > 0 else value
