"""JSON structs of a kernel workload, checked field by field; app.wire.kernel_tables has their rows."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from app.stacks.facts import Link
from app.wire.field_facts import about

# An id, an alias, or a whole specification inline.
GpuRef: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)] | dict[str, Any]
StrictNames: TypeAlias = Annotated[
    bool, about("Refuse the name of a family (h100), which is otherwise taken as its most rented product")
]
# Above this the unit is wrong.
MOST_WATTS = 1e6
_NETWORK = "what a device can send to other nodes, one way"
NetworkRate: TypeAlias = Annotated[float, about(_NETWORK, ge=1e6, le=1e13)]
GivenRate: TypeAlias = Annotated[NetworkRate | None, about(_NETWORK)]
DeviceLink: TypeAlias = Annotated[
    Link | None, about("Link of a machine's devices: a bridge that joins two cards, or their slots; absent: their best")
]
PowerCap: TypeAlias = Annotated[
    Annotated[float, Meta(gt=0, le=MOST_WATTS)] | None,
    about("Board power that is set, watts: products run at the clock it allows; absent: the data sheet's", unit="W"),
]

_NAME_CHARACTERS = "^[^\\x00-\\x1f\\x7f]+$"  # control characters are invisible in logs, and PostgreSQL stores no NUL
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200, pattern=_NAME_CHARACTERS)]
Count: TypeAlias = Annotated[float, Meta(ge=0, le=1e18)]
Flops: TypeAlias = Annotated[Count, about("Operations of the whole grid; a fused multiply-add is two", title="FLOPs")]
Moved: TypeAlias = Annotated[Count, about("Bytes that the whole grid reads and writes", title="Bytes moved")]
WorkingSet: TypeAlias = Annotated[Count, about("Distinct bytes that the whole grid touches")]
Stride: TypeAlias = Annotated[Count, about("Bytes between what neighbouring lanes touch, where strided")]
Atomics: TypeAlias = Annotated[Count, about("Atomic operations of the whole grid")]
Addresses: TypeAlias = Annotated[Count, about("Distinct addresses of the atomic operations")]
LaneOperations: TypeAlias = Annotated[Count, about("Loads, stores, atomics and loop steps of all lanes")]
# Whole numbers, also if a client writes them as 256.0.
Threads: TypeAlias = Annotated[float, about("Threads of a block", ge=1, le=1e6, multiple_of=1)]
Blocks: TypeAlias = Annotated[float, about("Blocks of the grid", ge=1, le=1e15, multiple_of=1)]
Registers: TypeAlias = Annotated[
    float, about("32-bit registers of a thread", ge=0, le=65_536, multiple_of=1, title="Registers in a thread")
]
Bytes: TypeAlias = Annotated[
    float, about("Bytes of shared memory of a block", ge=0, le=1e12, multiple_of=1, title="Shared bytes in a block")
]
Fraction: TypeAlias = Annotated[float, about("0: none; 1: every branch splits its warp", ge=0, le=1)]
Ways: TypeAlias = Annotated[float, about("Lanes of a warp that meet in one bank", ge=0, le=1024)]
# No kernel runs under a nanosecond or over ten days: outside this range the unit is wrong.
Milliseconds: TypeAlias = Annotated[float, about("Time on the device, milliseconds", ge=1e-6, le=1e9)]
AccessPattern: TypeAlias = Literal["coalesced", "strided", "random", "broadcast"]
Dtype: TypeAlias = Literal["fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp8_block", "int8", "nvfp4"]


class KernelSize(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True, omit_defaults=True):
    """The problem's size in the kernel's own terms. What does not apply is left out or 0."""

    n: Annotated[Count | None, about("Elements, or columns of the result", title="Size n")] = None
    rows: Annotated[Count | None, about("Rows of the result")] = None
    cols: Annotated[Count | None, about("Columns of the result", title="Columns")] = None
    iterations: Annotated[Count | None, about("Repetitions inside the kernel")] = None


Size: TypeAlias = Annotated[KernelSize | None, about("The problem's size in the kernel's own terms")]


class MeasuredKernel(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True, omit_defaults=True):
    """One measured launch: this kernel on another GPU, or another size or kernel where fields are overridden.

    Omitted fields are those of the enclosing workload; the compiler may give each GPU its own registers.
    """

    gpu: Annotated[GpuRef, about("GPU that it was measured on: id, alias or specification")]
    latency_ms: Milliseconds
    name: Annotated[Name | None, about("A related kernel; absent: the same kernel")] = None
    flops: Annotated[Flops | None, about("Floating-point operations; a fused multiply-add counts two")] = None
    bytes: Annotated[Moved | None, about("Bytes read and written")] = None
    threads_per_block: Annotated[Threads | None, about("Threads of a block")] = None
    blocks: Annotated[Blocks | None, about("Blocks of the grid")] = None
    registers_per_thread: Annotated[Registers | None, about("32-bit registers of a thread")] = None
    shared_memory_per_block: Annotated[Bytes | None, about("Shared memory of a block, bytes")] = None
    working_set_bytes: Annotated[WorkingSet | None, about("Distinct bytes that the whole grid touches")] = None
    access_pattern: Annotated[AccessPattern | None, about("How neighbouring lanes of a warp access memory")] = None
    dtype: Annotated[Dtype | None, about("Number format that the kernel computes in")] = None
    size: Size = None
    stride_bytes: Annotated[Stride | None, about("Distance between the accesses of neighbouring lanes, bytes")] = None
    atomic_operations: Annotated[Atomics | None, about("Atomic operations of the whole grid")] = None
    atomic_addresses: Annotated[Addresses | None, about("Distinct addresses of the atomic operations")] = None
    branch_divergence: Annotated[Fraction | None, about("0: none; 1: every branch splits its warp")] = None
    lane_operations: Annotated[LaneOperations | None, about("Loads, stores, atomics and loop steps of all lanes")] = (
        None
    )
    bank_conflict_ways: Annotated[Ways | None, about("Lanes of a warp that meet in one bank of shared memory")] = None


class KernelWorkload(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True, omit_defaults=True):
    """One launch of any CUDA-like kernel. Sizes are bytes; counts are per launch, over the whole grid."""

    kind: Annotated[Literal["kernel"], about("Kind of the workload")]
    name: Annotated[Name, about("Name of the kernel; groups measurements of one kernel", title="Kernel")]
    flops: Flops
    bytes: Moved
    threads_per_block: Annotated[Threads, about("Threads of a block", title="Threads in a block")]
    blocks: Annotated[Blocks, about("Blocks of the grid")]
    registers_per_thread: Registers
    shared_memory_per_block: Bytes
    working_set_bytes: Annotated[
        WorkingSet, about("Distinct bytes that the whole grid touches", title="Distinct bytes")
    ]
    access_pattern: Annotated[AccessPattern, about("How neighbouring lanes of a warp access memory")]
    dtype: Annotated[Dtype, about("Number format that the kernel computes in", title="Number format")]
    size: Size = None
    stride_bytes: Annotated[
        Stride | None, about("Distance between the accesses of neighbouring lanes, bytes", title="Stride, bytes")
    ] = None
    atomic_operations: Annotated[Atomics | None, about("Atomic operations of the whole grid")] = None
    atomic_addresses: Annotated[
        Addresses | None, about("Distinct addresses of the atomic operations", title="Addresses of atomics")
    ] = None
    branch_divergence: Annotated[
        Fraction | None, about("0: none; 1: every branch splits its warp", title="Divergence")
    ] = None
    lane_operations: Annotated[
        LaneOperations | None, about("Loads, stores, atomics and loop steps of all lanes", title="Operations of lanes")
    ] = None
    bank_conflict_ways: Annotated[
        Ways | None, about("Lanes of a warp that meet in one bank of shared memory", title="Ways of bank conflicts")
    ] = None
    measured: Annotated[
        list[MeasuredKernel],
        about(
            "Measured launches of this kernel or of related ones; more of them narrow the interval",
            max_length=500,
            title="Measured on",
        ),
    ] = []

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
