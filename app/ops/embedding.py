"""`embedding`: `b` rows of `h` looked up in a table of `vocabulary` rows.

Bytes = 64-bit indices + rows read + rows written. Backward adds dY into a dense gradient, as PyTorch does: the table
is filled with zeros, and each looked-up row is read and written again. Nothing is computed forward.
"""

from __future__ import annotations

import numpy as np

from app.ops.base import COMMON, Dim, Op
from app.ops.figures import Work
from app.ops.prior import Prior
from app.ops.suite import PLAIN, ROWS, Log, Made, Maker, Row, Space
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


def _build(make: Maker, row: Row) -> Made:
    vocabulary = row["vocabulary"]
    table, chosen = make.normal(vocabulary, row["h"]), make.whole(vocabulary, row["b"])
    return Made(lambda: make.torch.nn.functional.embedding(chosen, table), (table,))


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
        prior=Prior.of("embedding"),
        traffic="moves",
        own_input=True,
        tied=True,
        suite=Space({"b": ROWS, "h": Log(32, 8192), "vocabulary": Log(512, 1 << 18)}, PLAIN, _build),
        example={"b": 4096, "h": 4096},
    ),
)
