"""`kernel`: one launch of any CUDA-like kernel, described by its counts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from app.ops.base import Dim, Op
from app.ops.figures import Work
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

# What bounds a launch besides its bytes, by its own counts: operands of its FLOPs that wait for memory; loops, atomics
# and extra transactions; or one address that all lanes update in turn.
MECHANISMS = ("operands", "loops", "serial")
OPERANDS, LOOPS, SERIAL = range(3)
# Lane operations beyond this multiple of (1 + FLOPs) are not operands of FLOPs.
LOOP_RATIO = 4.0
# A lane reads or writes words of four bytes where lane operations are not given.
BYTES_PER_LANE_OPERATION = 4.0
_IDENTITY = tuple(GIVEN.index(name) for name in IDENTITY_FIELDS)
_FLOPS, _BYTES, _WORKING_SET = (GIVEN.index(name) for name in ("flops", "bytes", "working_set_bytes"))
_LANES, _ATOMICS, _ADDRESSES = (
    GIVEN.index(name) for name in ("lane_operations", "atomic_operations", "atomic_addresses")
)
_PATTERN, _DIVERGENCE = GIVEN.index("access_pattern"), GIVEN.index("branch_divergence")
_LAUNCH_BITS = (1 << 52) - 1  # a float64 holds it exactly


def filled(figures: Sequence[float | None]) -> list[float | None]:
    """A row of FIELDS from one of GIVEN: working set and lane operations where absent, and what follows from all.

    An absent working set is all bytes; absent lane operations are the FLOPs and the words moved, at least the
    atomics.
    """
    row = list(figures)
    flops, moved, atomics = row[_FLOPS] or 0.0, row[_BYTES] or 0.0, row[_ATOMICS] or 0.0
    given = row[_LANES]
    lanes = max(flops + moved / BYTES_PER_LANE_OPERATION if given is None else given, atomics, 1.0)
    row[_LANES] = lanes
    if row[_WORKING_SET] is None:
        row[_WORKING_SET] = moved
    mechanism = OPERANDS
    if not (flops or moved) or (atomics and row[_ADDRESSES] == 1):
        mechanism = SERIAL
    elif lanes > LOOP_RATIO * (1.0 + flops) or row[_PATTERN] == _STRIDED or row[_DIVERGENCE]:
        mechanism = LOOPS
    launch = hash(tuple([row[k] or 0 for k in _IDENTITY])) & _LAUNCH_BITS
    row += mechanism, launch
    return row


def work(table: OpTable) -> Work:
    """FLOPs, bytes and working set as the caller counted them."""
    return Work(table.column("flops"), table.column("bytes"), table.column("working_set_bytes"))


OP = Op("kernel", "kernel", tuple(Dim(name, "docs/reference/nomenclature.md", default=np.nan) for name in FIELDS), work)
