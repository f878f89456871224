"""One launch of any CUDA-like kernel, described by its counts."""

from __future__ import annotations

from collections.abc import Sequence

from app.ops.base import Op, Work
from app.tables.ops import OpTable

ACCESS_PATTERNS = ("coalesced", "strided", "random", "broadcast")
ACCESS_CODE = {name: code for code, name in enumerate(ACCESS_PATTERNS)}
_STRIDED = ACCESS_CODE["strided"]

SIZE_FIELDS = ("n", "rows", "cols", "iterations")
# Counts are per launch unless the name says otherwise. `access_pattern` is a code into ACCESS_PATTERNS;
# `branch_divergence` is 0 (none) to 1 (every branch splits its warp).
GIVEN = (
    "flops",
    "bytes",
    "threads_per_block",
    "blocks",
    "registers_per_thread",
    "shared_memory_per_block",
    "working_set_bytes",
    "access_pattern",
    *SIZE_FIELDS,
    "stride_bytes",
    "atomic_operations",
    "atomic_addresses",
    "branch_divergence",
    "lane_operations",
    "bank_conflict_ways",
)
# `mechanism` (a code into MECHANISMS) and `launch` (equal for one launch, whatever the GPU) follow from the rest.
FIELDS = (*GIVEN, "mechanism", "launch")
FIELD_INDEX = {name: k for k, name in enumerate(FIELDS)}
# Two rows with equal figures here are the same launch: the compiler may still give each GPU its own registers.
IDENTITY_FIELDS = ("flops", "bytes", "threads_per_block", "blocks", "shared_memory_per_block", *SIZE_FIELDS)

# What holds a launch up where its bytes do not, as far as its own counts tell: operands of its FLOPs waiting on
# memory; loops, atomics and extra transactions; or one address that all lanes update in turn.
MECHANISMS = ("operands", "loops", "serial")
OPERANDS, LOOPS, SERIAL = range(3)
# Lane operations beyond this multiple of (1 + FLOPs) are not operands of FLOPs.
LOOP_RATIO = 4.0
# A lane reads or writes words of four bytes where lane operations are not given.
BYTES_PER_LANE_OPERATION = 4.0
_IDENTITY = tuple(GIVEN.index(name) for name in IDENTITY_FIELDS)
_LAUNCH_BITS = (1 << 52) - 1  # a float64 holds it exactly


def filled(figures: Sequence[float | None]) -> list[float | None]:
    """A row of FIELDS from one of GIVEN: working set and lane operations where absent, and what follows from all.

    An absent working set is all bytes; absent lane operations are the FLOPs and the words moved, at least the
    atomics.
    """
    row = dict(zip(GIVEN, figures, strict=True))
    flops, moved, atomics = row["flops"] or 0.0, row["bytes"] or 0.0, row["atomic_operations"] or 0.0
    lanes = row["lane_operations"]
    lanes = max(flops + moved / BYTES_PER_LANE_OPERATION if lanes is None else lanes, atomics, 1.0)
    row["lane_operations"] = lanes
    if row["working_set_bytes"] is None:
        row["working_set_bytes"] = moved
    mechanism = OPERANDS
    if not (flops or moved) or (atomics and row["atomic_addresses"] == 1):
        mechanism = SERIAL
    elif lanes > LOOP_RATIO * (1.0 + flops) or row["access_pattern"] == _STRIDED or row["branch_divergence"]:
        mechanism = LOOPS
    launch = hash(tuple(float(figures[k] or 0) for k in _IDENTITY)) & _LAUNCH_BITS
    return [*row.values(), mechanism, launch]


def work(table: OpTable) -> Work:
    """FLOPs, bytes and working set as the caller counted them."""
    return Work(table.column("flops"), table.column("bytes"), table.column("working_set_bytes"))


OP = Op("kernel", FIELDS, work)
