"""Element-wise operators on `b` rows of `h`.

FLOPs = operations per element x b h; bytes = (tensors read + tensors written) x b h elements. PM2Lat ("Utility Layer
Latency Prediction") and NeuSight take these layers as bound by memory. Operations per element count each arithmetic
instruction as one and each special function (exp, tanh, log, division) as two; they are far under any roof.

Backward, as PyTorch's autograd stores it: a unary one reads dY and what forward kept, and writes dX; a binary one
writes two gradients; with a scalar, dX = s dY.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from app.ops.base import COMMON, Dim, Op, Work
from app.tables.ops import DTYPE_BYTES, OUTPUT_BYTES, OpTable


class Cost(NamedTuple):
    """Per element: operations, tensors read, tensors written."""

    flops: float
    read: float
    written: float


def _work(forward: Cost, backward: Cost) -> Callable[[OpTable], Work]:
    def work(table: OpTable) -> Work:
        elements, back = table.column("b") * table.column("h"), table.column("backward")
        flops, read, written = (f + back * (b - f) for f, b in zip(forward, backward, strict=True))
        moved = elements * (read * DTYPE_BYTES[table.dtype] + written * OUTPUT_BYTES[table.dtype])
        return Work(flops * elements, moved, moved)

    return work


_DIMS = (Dim("b", "rows"), Dim("h", "elements of a row"), *COMMON)
_COSTS = {
    "add": (Cost(1, 2, 1), Cost(2, 1, 2)),
    "mul": (Cost(1, 2, 1), Cost(2, 3, 2)),
    "div": (Cost(2, 2, 1), Cost(6, 3, 2)),
    "pow": (Cost(4, 2, 1), Cost(12, 4, 2)),
    "relu": (Cost(1, 1, 1), Cost(1, 2, 1)),
    "gelu": (Cost(8, 1, 1), Cost(14, 2, 1)),
    "tanh": (Cost(2, 1, 1), Cost(3, 2, 1)),
    "silu": (Cost(4, 1, 1), Cost(8, 2, 1)),
    "add_scalar": (Cost(1, 1, 1), Cost(1, 1, 1)),
    "mul_scalar": (Cost(1, 1, 1), Cost(1, 1, 1)),
    "div_scalar": (Cost(2, 1, 1), Cost(2, 1, 1)),
    "pow_scalar": (Cost(4, 1, 1), Cost(6, 2, 1)),
}

ELEMENTWISE_OPS = tuple(
    Op(name, "elementwise", _DIMS, _work(forward, backward)) for name, (forward, backward) in _COSTS.items()
)
