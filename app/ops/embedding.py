"""`embedding`: `b` rows of `h` looked up in a table of `vocabulary` rows.

Bytes = 64-bit indices + rows read + rows written. Backward adds dY into a dense gradient, as PyTorch does: the table
is filled with zeros, and each looked-up row is read and written again. Nothing is computed forward.
"""

from __future__ import annotations

import numpy as np

from app.ops.base import COMMON, Dim, Op, Work
from app.tables.ops import DTYPE_BYTES, OpTable

_INDEX_BYTES = 8.0


def work(table: OpTable) -> Work:
    """Work of look-ups."""
    rows, back, size = table.column("b"), table.column("backward"), DTYPE_BYTES[table.dtype]
    width = table.column("h") * size
    entire = back * table.column("vocabulary") * width
    moved = rows * _INDEX_BYTES + (2.0 + back) * rows * width + entire
    distinct = rows * _INDEX_BYTES + rows * width
    distinct = distinct + np.where(back > 0, entire, np.minimum(rows, table.column("vocabulary")) * width)
    return Work(back * rows * table.column("h"), moved, distinct)


EMBEDDING_OPS = (
    Op(
        "embedding",
        "embedding",
        (
            Dim("b", "rows looked up (tokens)"),
            Dim("h", "elements of a row"),
            Dim("vocabulary", "rows of the table", default=32_768.0),
            *COMMON,
        ),
        work,
    ),
)
