"""One launch of any CUDA-like kernel, described by its counts."""

from __future__ import annotations

import numpy as np

from app.ops.base import Op, Work
from app.tables.ops import OpTable

ACCESS_PATTERNS = ("coalesced", "strided", "random", "broadcast")
ACCESS_CODE = {name: code for code, name in enumerate(ACCESS_PATTERNS)}

SIZE_FIELDS = ("n", "rows", "cols", "iterations")
# Counts are per launch unless the name says otherwise. `access_pattern` is a code into ACCESS_PATTERNS;
# `branch_divergence` is 0 (none) to 1 (every branch splits its warp).
FIELDS = (
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
FIELD_INDEX = {name: k for k, name in enumerate(FIELDS)}
# Two rows with equal figures here are the same launch: the compiler may still give each GPU its own registers.
IDENTITY_FIELDS = ("flops", "bytes", "threads_per_block", "blocks", "shared_memory_per_block", *SIZE_FIELDS)


def work(table: OpTable) -> Work:
    """FLOPs, bytes and working set as the caller counted them; an absent working set is all bytes."""
    moved = table.column("bytes")
    working_set = table.column("working_set_bytes")
    return Work(table.column("flops"), moved, np.where(np.isnan(working_set), moved, working_set))


OP = Op("kernel", FIELDS, work)
