"""Moving bytes: `copy` reads and writes a tensor of `b` rows of `h`; `memory` is anything else, by its bytes.

NeuSight predicts an operator that it does not know as bound by its memory traffic: time = bytes / bandwidth. `bytes`
of `memory` is all that is read and written. Backward of a copy is a copy; of `memory`, as many bytes.
"""

from __future__ import annotations

from app.ops.base import COMMON, MOST_BYTES, Dim, Op, handed_rows
from app.ops.figures import Work
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
    handed=handed_rows,
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
