"""JSON structs of a kernel workload, checked field by field, and their conversion to rows of the operator table."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from math import nan
from struct import Struct as Packed
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from msgspec import Meta, Struct, structs

from app.ops import OP_CODE
from app.ops.kernel import ACCESS_CODE, FIELD_INDEX, FIELDS, GIVEN
from app.tables.measurements import Measurements
from app.tables.ops import DTYPE_CODE, OpTable
from app.wire.kernel_figures import fill_figures

# An id, an alias, or a whole specification inline.
GpuRef: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)] | dict[str, Any]

_NAME_CHARACTERS = "^[^\\x00-\\x1f\\x7f]+$"  # control characters are invisible in logs, and PostgreSQL stores no NUL
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200, pattern=_NAME_CHARACTERS)]
Count: TypeAlias = Annotated[float, Meta(ge=0, le=1e18)]
Flops: TypeAlias = Annotated[Count, Meta(description="Operations of the whole grid; a fused multiply-add is two")]
Moved: TypeAlias = Annotated[Count, Meta(description="Bytes that the whole grid reads and writes")]
WorkingSet: TypeAlias = Annotated[Count, Meta(description="Distinct bytes that the whole grid touches")]
Stride: TypeAlias = Annotated[Count, Meta(description="Bytes between what neighbouring lanes touch, where strided")]
Atomics: TypeAlias = Annotated[Count, Meta(description="Atomic operations of the whole grid")]
Addresses: TypeAlias = Annotated[Count, Meta(description="Distinct addresses of the atomic operations")]
LaneOperations: TypeAlias = Annotated[Count, Meta(description="Loads, stores, atomics and loop steps of all lanes")]
# Whole numbers, also if a client writes them as 256.0.
Threads: TypeAlias = Annotated[float, Meta(ge=1, le=1e6, multiple_of=1, description="Threads of a block")]
Blocks: TypeAlias = Annotated[float, Meta(ge=1, le=1e15, multiple_of=1, description="Blocks of the grid")]
Registers: TypeAlias = Annotated[float, Meta(ge=0, le=65_536, multiple_of=1, description="32-bit ones of a thread")]
Bytes: TypeAlias = Annotated[float, Meta(ge=0, le=1e12, multiple_of=1, description="Bytes of shared memory of a block")]
Fraction: TypeAlias = Annotated[float, Meta(ge=0, le=1, description="0: none; 1: every branch splits its warp")]
Ways: TypeAlias = Annotated[float, Meta(ge=0, le=1024, description="Lanes of a warp that meet in one bank")]
# No kernel runs under a nanosecond or over ten days: outside this range the unit is wrong.
Milliseconds: TypeAlias = Annotated[float, Meta(ge=1e-6, le=1e9, description="Time on the device, milliseconds")]
AccessPattern: TypeAlias = Literal["coalesced", "strided", "random", "broadcast"]
Dtype: TypeAlias = Literal["fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp8_block", "int8", "nvfp4"]


class KernelSize(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True, omit_defaults=True):
    """The problem's size in the kernel's own terms. What does not apply is left out or 0."""

    n: Count | None = None
    rows: Count | None = None
    cols: Count | None = None
    iterations: Count | None = None


class MeasuredKernel(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True, omit_defaults=True):
    """One measured launch: this kernel on another GPU, or another size or kernel where fields are overridden.

    Omitted fields are those of the enclosing workload; the compiler may give each GPU its own registers.
    """

    gpu: GpuRef
    latency_ms: Milliseconds
    name: Name | None = None
    flops: Flops | None = None
    bytes: Moved | None = None
    threads_per_block: Threads | None = None
    blocks: Blocks | None = None
    registers_per_thread: Registers | None = None
    shared_memory_per_block: Bytes | None = None
    working_set_bytes: WorkingSet | None = None
    access_pattern: AccessPattern | None = None
    dtype: Dtype | None = None
    size: KernelSize | None = None
    stride_bytes: Stride | None = None
    atomic_operations: Atomics | None = None
    atomic_addresses: Addresses | None = None
    branch_divergence: Fraction | None = None
    lane_operations: LaneOperations | None = None
    bank_conflict_ways: Ways | None = None


class KernelWorkload(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True, omit_defaults=True):
    """One launch of any CUDA-like kernel. Sizes are bytes; counts are per launch, over the whole grid.

    `branch_divergence` is 0 (none) to 1 (every branch splits its warp); `lane_operations` counts loads, stores, atomics
    and loop operations per lane; `working_set_bytes` is distinct bytes touched.
    """

    kind: Literal["kernel"]
    name: Name
    flops: Flops
    bytes: Moved
    threads_per_block: Threads
    blocks: Blocks
    registers_per_thread: Registers
    shared_memory_per_block: Bytes
    working_set_bytes: WorkingSet
    access_pattern: AccessPattern
    dtype: Dtype
    size: KernelSize | None = None
    stride_bytes: Stride | None = None
    atomic_operations: Atomics | None = None
    atomic_addresses: Addresses | None = None
    branch_divergence: Fraction | None = None
    lane_operations: LaneOperations | None = None
    bank_conflict_ways: Ways | None = None
    measured: Annotated[list[MeasuredKernel], Meta(max_length=500)] = []

    def __post_init__(self) -> None:
        """Check that counts are 0 or at least 1, and that the launch does some work."""
        if 0 < self.flops < 1 or 0 < self.bytes < 1 or 0 < self.working_set_bytes < 1:
            raise ValueError("flops, bytes and working_set_bytes are counts: 0, or at least 1")
        if not (self.flops or self.bytes or self.lane_operations or self.atomic_operations):
            raise ValueError("flops and bytes are both 0: send one of them, lane_operations or atomic_operations")


KERNEL_EXAMPLE: dict[str, Any] = {
    "kind": "kernel",
    "name": "matmul_tiled",
    "flops": 2147483648,
    "bytes": 12582912,
    "threads_per_block": 256,
    "blocks": 4096,
    "registers_per_thread": 32,
    "shared_memory_per_block": 2048,
    "working_set_bytes": 12582912,
    "access_pattern": "coalesced",
    "dtype": "fp32",
    "size": {"n": 0, "rows": 1024, "cols": 1024, "iterations": 1},
    "measured": [{"gpu": "titan-v", "latency_ms": 0.91}],
}

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
    measured = Measurements(both.take(np.array(launch)), np.array(gpu, dtype=np.intp), np.array(latency_s))
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
