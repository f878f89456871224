"""Rows of the operator table of kernel workloads. Apart from their structs, which need no compiled code."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from math import nan
from struct import Struct as Packed

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from app.ops import OP_CODE
from app.ops.kernel import (
    ACCESS_CODE,
    BYTES_PER_LANE_OPERATION,
    COPY,
    COPY_RATIO,
    FIELD_INDEX,
    FIELDS,
    GIVEN,
    IDENTITY_FIELDS,
    LOOP_RATIO,
    LOOPS,
    OPERANDS,
    SERIAL,
    UNCOUNTED,
)
from app.runtime.compiled import compiled
from app.tables.arrays import Floats
from app.tables.measurements import Measurements
from app.tables.ops import DTYPE_CODE, OpTable
from app.wire.kernel_workload import KernelSize, KernelWorkload, MeasuredKernel

_GIVEN = len(GIVEN)
_FLOPS, _BYTES, _WORKING_SET = (FIELD_INDEX[name] for name in ("flops", "bytes", "working_set_bytes"))
_LANES, _ATOMICS, _ADDRESSES = (
    FIELD_INDEX[name] for name in ("lane_operations", "atomic_operations", "atomic_addresses")
)
_PATTERN, _DIVERGENCE = FIELD_INDEX["access_pattern"], FIELD_INDEX["branch_divergence"]
_MECHANISM, _LAUNCH = FIELD_INDEX["mechanism"], FIELD_INDEX["launch"]
_IDENTITY = np.array([FIELD_INDEX[name] for name in IDENTITY_FIELDS])
_COALESCED, _STRIDED = ACCESS_CODE["coalesced"], ACCESS_CODE["strided"]
# A float64 holds an integer of so many bits exactly.
_HASH_BITS = np.uint64(52)
# Of MurmurHash3's finalizer, after which every bit depends on every bit before.
_HALF, _FIRST, _SECOND = np.uint64(33), np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)


def fill_figures(given: bytes, dims: Floats) -> None:
    """Fill `dims`, float64 [fields, n], from the given figures of launches, float64 [n, len(GIVEN)], NaN where absent.

    An absent working set is all bytes; absent lane operations are the FLOPs and the words moved, at least the atomics.
    """
    _fill(np.frombuffer(given), np.frombuffer(given, np.uint64), dims)


@compiled
def _fill(given: Floats, bits: NDArray[np.uint64], dims: Floats) -> None:
    for k in range(dims.shape[1]):
        first = k * _GIVEN
        for field in range(_GIVEN):
            dims[field, k] = given[first + field]
        flops, moved, atomics = _or_zero(dims[_FLOPS, k]), _or_zero(dims[_BYTES, k]), _or_zero(dims[_ATOMICS, k])
        lanes, mechanism = dims[_LANES, k], OPERANDS
        if np.isnan(lanes):
            mechanism = UNCOUNTED
            lanes = flops + moved / BYTES_PER_LANE_OPERATION
        lanes = max(lanes, atomics, 1.0)
        dims[_LANES, k] = lanes
        if np.isnan(dims[_WORKING_SET, k]):
            dims[_WORKING_SET, k] = moved
        diverges = _or_zero(dims[_DIVERGENCE, k]) > 0.0
        if flops + moved <= 0.0 or (atomics > 0.0 and dims[_ADDRESSES, k] == 1.0):
            mechanism = SERIAL
        elif dims[_PATTERN, k] == _STRIDED or diverges:
            mechanism = LOOPS
        elif flops + atomics <= 0.0 and lanes <= COPY_RATIO * moved / BYTES_PER_LANE_OPERATION:
            mechanism = COPY if dims[_PATTERN, k] == _COALESCED else LOOPS
        elif lanes > LOOP_RATIO * (1.0 + flops):
            mechanism = LOOPS
        dims[_MECHANISM, k] = mechanism
        dims[_LAUNCH, k] = _launch(given, bits, first)


@compiled
def _or_zero(figure: float) -> float:
    return 0.0 if np.isnan(figure) else figure


@compiled
def _launch(given: Floats, bits: NDArray[np.uint64], first: int) -> float:
    """Return a hash of the figures that identify a launch, equal for absent ones and zeros."""
    value = np.uint64(0)
    for field in _IDENTITY:
        if abs(given[first + field]) > 0.0:  # False for NaN
            value ^= bits[first + field]
        value = (value ^ (value >> _HALF)) * _FIRST
        value = (value ^ (value >> _HALF)) * _SECOND + np.uint64(field)
    return float(value >> (np.uint64(64) - _HASH_BITS))


_KERNEL = OP_CODE["kernel"]
# Fields that a measured row may override and that map to a column of the same name.
_OVERRIDES = tuple(
    (name, FIELD_INDEX[name])
    for name in GIVEN
    if name in KernelWorkload.__struct_fields__ and name not in ("access_pattern", "size")
)
# Fields of a measured row after GPU and time if it overrides nothing.
_AS_THE_WORKLOAD = (None,) * (len(MeasuredKernel.__struct_fields__) - 2)
_ROW = Packed(f"{len(GIVEN)}d")
_SIZES = tuple((name, FIELD_INDEX[name]) for name in KernelSize.__struct_fields__)


@lru_cache(maxsize=65_536)
def kernel_label(name: str) -> int:
    """Return an integer label of a kernel name, the same in every process: 56 bits of its BLAKE2b."""
    return int.from_bytes(blake2b(name.encode("utf-8", "surrogatepass"), digest_size=7).digest(), "big")


def kernel_table(workloads: Sequence[KernelWorkload]) -> OpTable:
    """Return one row per workload, in order; omitted figures are NaN."""
    return _table(
        [_figures(workload) for workload in workloads],
        [kernel_label(workload.name) for workload in workloads],
        [DTYPE_CODE[workload.dtype] for workload in workloads],
    )


def tables_with_measured(workloads: Sequence[KernelWorkload], gpu: Sequence[int]) -> tuple[OpTable, Measurements]:
    """Return one row per workload, and the `measured` rows of all workloads, in order.

    A measured row is its workload with that row's overrides. `gpu` is the row of the GPU table for each measured row.
    """
    if not gpu:
        return kernel_table(workloads), NO_MEASUREMENTS
    figures = [_figures(workload) for workload in workloads]
    labels = [kernel_label(workload.name) for workload in workloads]
    dtypes = [DTYPE_CODE[workload.dtype] for workload in workloads]
    launch: list[int] = []
    latency_s: list[float] = []
    for position, workload in enumerate(workloads):
        for row in workload.measured:
            latency_s.append(row.latency_ms * 1e-3)
            if structs.astuple(row)[2:] == _AS_THE_WORKLOAD:
                launch.append(position)
                continue
            launch.append(len(figures))
            figures.append(_with_overrides(workload, row))
            labels.append(labels[position] if row.name is None else kernel_label(row.name))
            dtypes.append(dtypes[position] if row.dtype is None else DTYPE_CODE[row.dtype])
    both = _table(figures, labels, dtypes)
    launches = both if launch == list(range(len(both))) else both.take(np.array(launch))  # the usual case: one row each
    measured = Measurements(launches, np.array(gpu, dtype=np.intp), np.array(latency_s))
    return both if len(both) == len(workloads) else both.take(np.arange(len(workloads))), measured


def _table(figures: Sequence[Sequence[float]], labels: Sequence[int], dtypes: Sequence[int]) -> OpTable:
    """Return a row for each row of figures in the order of GIVEN."""
    n = len(figures)
    dims = np.empty((len(FIELDS), n))
    # NumPy takes five times as long to read a list.
    fill_figures(b"".join([_ROW.pack(*row) for row in figures]), dims)
    kind = np.full(n, _KERNEL, dtype=np.intp)
    return OpTable(kind, np.array(dtypes, dtype=np.intp), np.array(labels, dtype=np.intp), FIELD_INDEX, dims)


NO_MEASUREMENTS = Measurements(_table([], [], []), np.empty(0, dtype=np.intp), np.empty(0))


def _figures(workload: KernelWorkload) -> tuple[float, ...]:
    """Return one row in the order of GIVEN; an omitted figure is NaN."""
    size = workload.size or _NO_SIZE
    return (
        workload.flops,
        workload.bytes,
        workload.threads_per_block,
        workload.blocks,
        workload.registers_per_thread,
        workload.shared_memory_per_block,
        workload.working_set_bytes,
        ACCESS_CODE[workload.access_pattern],
        nan if size.n is None else size.n,
        nan if size.rows is None else size.rows,
        nan if size.cols is None else size.cols,
        nan if size.iterations is None else size.iterations,
        nan if workload.stride_bytes is None else workload.stride_bytes,
        nan if workload.atomic_operations is None else workload.atomic_operations,
        nan if workload.atomic_addresses is None else workload.atomic_addresses,
        nan if workload.branch_divergence is None else workload.branch_divergence,
        nan if workload.lane_operations is None else workload.lane_operations,
        nan if workload.bank_conflict_ways is None else workload.bank_conflict_ways,
    )


_NO_SIZE = KernelSize()


def _with_overrides(workload: KernelWorkload, row: MeasuredKernel) -> tuple[float, ...]:
    figures = list(_figures(workload))
    for name, column in _OVERRIDES:
        value = getattr(row, name)
        if value is not None:
            figures[column] = value
    if row.access_pattern is not None:
        figures[FIELD_INDEX["access_pattern"]] = ACCESS_CODE[row.access_pattern]
    if row.size is not None:
        for name, column in _SIZES:
            value = getattr(row.size, name)
            if value is not None:
                figures[column] = value
    return tuple(figures)
