"""Moving bytes: `copy` reads and writes a tensor of `b` rows of `h`; `memory` is anything else, by its bytes.

NeuSight predicts an operator that it does not know as bound by its memory traffic: time = bytes / bandwidth. `bytes`
of `memory` is all that is read and written. Backward of a copy is a copy; of `memory`, as many bytes.

`embedding`: `b` rows of `h` looked up in a table of `vocabulary` rows.

Bytes = 64-bit indices + rows read + rows written. Backward adds dY into a dense gradient, as PyTorch does: the table
is filled with zeros, and each looked-up row is read and written again. Nothing is computed forward.
"""

from __future__ import annotations

import numpy as np

from app.ops.base import COMMON, MOST_BYTES, Dim, Op
from app.ops.figures import Prior, Work
from app.ops.gradient import SAME
from app.ops.suite import PLAIN, ROWS, WIDTH, Log, Made, Maker, Row, Space
from app.tables.arrays import Floats
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


def _build_copy(make: Maker, row: Row) -> Made:
    x = make.normal(row["b"], row["h"])
    y = make.torch.empty_like(x)
    return Made(lambda: y.copy_(x), ())


def _build_memory(make: Maker, row: Row) -> Made:
    """Half of the bytes read, half written."""
    x = make.torch.randint(256, (row["bytes"] // 2,), dtype=make.torch.uint8, device=make.device)
    y = make.torch.empty_like(x)
    return Made(lambda: y.copy_(x), ())


COPY = Op(
    "copy",
    "memory",
    (Dim("b", "rows"), Dim("h", "elements of a row"), *COMMON),
    copy_work,
    default_dtype="fp32",
    handed="rows",
    traffic="moves",
    backward=(SAME,),
    fusible=True,
    own_input=True,
    suite=Space({"b": ROWS, "h": WIDTH}, PLAIN, _build_copy, back=False),
    example={"b": 4096, "h": 4096},
)
MEMORY = Op(
    "memory",
    "memory",
    (Dim("bytes", "bytes read and written", most=MOST_BYTES), *COMMON),
    memory_work,
    default_dtype="fp32",
    handed=_half,
    traffic="moves",
    backward=(SAME,),
    saves=("output",),
    fusible=True,
    own_input=True,
    suite=Space({"bytes": Log(1 << 10, 1 << 33, step=2)}, ("fp32",), _build_memory, back=False),
    example={"bytes": 1_000_000_000},
)
MEMORY_OPS = (COPY, MEMORY)


_INDEX_BYTES = 8.0


def embedding_work(table: OpTable) -> Work:
    """Work of look-ups."""
    rows, back, size = table.column("b"), table.column("backward"), DTYPE_BYTES[table.dtype]
    width = table.column("h") * size
    entire = back * table.column("vocabulary") * width
    moved = rows * _INDEX_BYTES + (2.0 + back) * rows * width + entire
    distinct = rows * _INDEX_BYTES + rows * width
    distinct = distinct + np.where(back > 0, entire, np.minimum(rows, table.column("vocabulary")) * width)
    return Work(back * rows * table.column("h"), moved, distinct)


def _build_embedding(make: Maker, row: Row) -> Made:
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
        embedding_work,
        prior=Prior.of("embedding"),
        traffic="moves",
        own_input=True,
        tied=True,
        suite=Space({"b": ROWS, "h": Log(32, 8192), "vocabulary": Log(512, 1 << 18)}, PLAIN, _build_embedding),
        example={"b": 4096, "h": 4096},
    ),
)
