"""Whether a launch can run on a GPU at all, and which limit it breaks where it cannot."""

from __future__ import annotations

from math import ceil, isnan

import numpy as np
from numpy.typing import NDArray

from app.errors import FieldError
from app.ops.kernel import FIELD_INDEX
from app.predictors.occupancy import LAUNCH_FIELDS
from app.predictors.roofline import peaks
from app.tables.gpus import GpuTable
from app.tables.ops import DTYPES, OpTable

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

_LAUNCH = np.array([FIELD_INDEX[name] for name in (*LAUNCH_FIELDS, "flops")])[:, None]
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
    """Why operator row `i[q]` cannot run on GPU row `j[q]`: one list per query, empty where it can.

    `loc` of an error is the one field of the workload that breaks the limit. Absent limits (NaN) do not bind.
    """
    launches, dtypes, limits = ops.dims[_LAUNCH, i].T.tolist(), ops.dtype[i].tolist(), _limits(gpus)[j].tolist()
    return [
        _broken(gpus.ids[gpu], launch, dtype, limit)
        for gpu, launch, dtype, limit in zip(j.tolist(), launches, dtypes, limits, strict=True)
    ]


def _limits(gpus: GpuTable) -> Floats:
    """Per GPU the figures of _LIMIT_NAMES, then the peak per dtype; derived once per table."""
    if "launch_limits" not in gpus.memo:
        columns = [gpus.column(name) for name in _LIMIT_NAMES]
        gpus.memo["launch_limits"] = np.ascontiguousarray(np.concatenate([columns, peaks(gpus)]).T)
    return gpus.memo["launch_limits"]


def _broken(gpu: str, launch: list[float], dtype: int, limits: list[float]) -> list[FieldError]:
    broken = _over(gpu, launch, limits[: len(_LIMIT_NAMES)])
    if launch[-1] > 0 and isnan(limits[len(_LIMIT_NAMES) + dtype]):
        broken.append(FieldError(("dtype",), f"{gpu} does not compute in {DTYPES[dtype]}"))
    return broken


def _over(gpu: str, launch: list[float], limit: list[float]) -> list[FieldError]:
    threads, registers, shared, _ = launch
    block_threads, sm_threads, thread_registers, file, unit, warp, block_shared, sm_shared, shared_unit = limit
    broken = []
    if threads > block_threads or threads > sm_threads:
        most = block_threads if threads > block_threads else sm_threads
        broken.append(_error("threads_per_block", threads, most, gpu, "threads per block"))
    if registers > thread_registers:
        broken.append(_error("registers_per_thread", registers, thread_registers, gpu, "registers per thread"))
    elif not broken and (need := _registers(threads, registers, unit, warp)) > file:
        text = f"{registers:,.0f} registers x {threads:,.0f} threads per block take {need:,.0f} registers"
        broken.append(FieldError(("registers_per_thread",), f"{text}; the register file of {gpu} has {file:,.0f}"))
    if shared > block_shared:
        broken.append(_error("shared_memory_per_block", shared, block_shared, gpu, "bytes of shared memory per block"))
    elif _rounded(shared, shared_unit) > sm_shared:
        broken.append(_error("shared_memory_per_block", shared, sm_shared, gpu, "bytes of shared memory per SM"))
    return broken


def _error(field: str, value: float, most: float, gpu: str, what: str) -> FieldError:
    return FieldError((field,), f"{value:,.0f} is over the limit of {gpu}: at most {most:,.0f} {what}")


def _registers(threads: float, registers: float, unit: float, warp: float) -> float:
    """Registers that one block takes: whole warps, rounded up to the allocation unit per warp."""
    if isnan(warp):
        return threads * registers
    return _rounded(registers * warp, unit) * ceil(threads / warp)


def _rounded(value: float, unit: float) -> float:
    return ceil(value / unit) * unit if unit > 0 else value
