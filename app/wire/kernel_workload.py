"""JSON structs of a kernel workload, checked field by field; app.wire.kernel_tables has their rows."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

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
