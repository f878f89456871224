"""Moving bytes: `copy` reads and writes a tensor of `b` rows of `h`; `memory` is anything else, by its bytes.

NeuSight predicts an operator that it does not know as bound by its memory traffic: time = bytes / bandwidth. `bytes`
of `memory` is all that is read and written. Backward of a copy is a copy; of `memory`, as many bytes.
"""

from __future__ import annotations

from app.ops.base import COMMON, MOST_BYTES, Dim, Floats, Op, Work, handed_rows
from app.tables.ops import DTYPE_BYTES, OpTable


def copy_work(table: OpTable) -> Work:
    """Each element once in, once out; nothing is computed."""
    moved = 2.0 * table.column("b") * table.column("h") * DTYPE_BYTES[table.dtype]
    return Work(0.0 * moved, moved, moved)


def memory_work(table: OpTable) -> Work:
    """The bytes given, whatever the dtype."""
    moved = 1.0 * table.column("bytes")
    return Work(0.0 * moved, moved, moved)


def _half(table: OpTable) -> Floats:
    """What is not written."""
    return 0.5 * table.column("bytes")


COPY = Op("copy", "memory", (Dim("b", "rows"), Dim("h", "elements of a row"), *COMMON), copy_work, handed=handed_rows)
MEMORY = Op(
    "memory", "memory", (Dim("bytes", "bytes read and written", most=MOST_BYTES), *COMMON), memory_work, handed=_half
)
MEMORY_OPS = (COPY, MEMORY)
