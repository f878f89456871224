"""`kernel`: one launch of any CUDA-like kernel, described by its counts."""

from __future__ import annotations

import numpy as np

from app.coefficients import Coefficients
from app.ops.base import Dim, Op
from app.ops.figures import Work
from app.tables.ops import OpTable

ACCESS_PATTERNS = ("coalesced", "strided", "random", "broadcast")
ACCESS_CODE = {name: code for code, name in enumerate(ACCESS_PATTERNS)}

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
# and extra transactions; or one address that all lanes update in turn. Where nobody counted lane operations, operands
# may come from registers and shared memory too. A copy moves bytes and computes nothing.
MECHANISMS = ("operands", "loops", "serial", "uncounted", "copy")
OPERANDS, LOOPS, SERIAL, UNCOUNTED, COPY = range(5)
# Lane operations beyond this multiple of (1 + FLOPs) are not operands of FLOPs.
LOOP_RATIO = 4.0
# Most lane operations of a copy per word that it moves: it may go through shared memory.
COPY_RATIO = Coefficients("launches").number("copy_lane_operations")
# A lane reads or writes words of four bytes where lane operations are not given.
BYTES_PER_LANE_OPERATION = 4.0


def work(table: OpTable) -> Work:
    """FLOPs, bytes and working set as the caller counted them."""
    return Work(table.column("flops"), table.column("bytes"), table.column("working_set_bytes"))


OP = Op("kernel", "kernel", tuple(Dim(name, "docs/reference/nomenclature.md", default=np.nan) for name in FIELDS), work)
