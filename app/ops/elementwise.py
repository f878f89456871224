"""Element-wise operators on `b` rows of `h`.

FLOPs = operations per element x b h; bytes = (tensors read + tensors written) x b h elements. PM2Lat ("Utility Layer
Latency Prediction") and NeuSight take these layers as bound by memory. Operations per element count each arithmetic
instruction as one and each special function (exp, tanh, log, division) as two; they are far under any roof.

Backward, as PyTorch's autograd stores it: a unary one reads dY and what forward kept, and writes dX; a binary one
writes two gradients; with a scalar, dX = s dY.

`add_strided` adds a tensor laid out otherwise than the result (T5's bias, heads last, to scores, heads first): a row's
neighbours lie `stride` elements apart, so each element comes in a sector of its own through the L2, and in a burst of
its own from DRAM, unless the L2 still has the burst when the next row needs its part of it.

`dropout` draws a random number per element (PyTorch: Philox 4x32-10, Salmon et al. 2011), which keeps the SMs longer
than its bytes keep the DRAM: x in, y and a byte of the mask out, and dY and that byte in and dX out again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from app.ops.base import COMMON, Dim, Floats, Op, Rereads, Work, handed_rows
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


# Bytes that the L2 hands over at least (a sector), and that it fetches from DRAM (NVIDIA since Volta; two sectors).
_SECTOR_BYTES, _BURST_BYTES = 32.0, 64.0


def _strided(table: OpTable, most: float) -> Floats:
    """Bytes fetched for an element of the strided tensor in pieces of `most`, [n]."""
    fetched: Floats = np.minimum(table.column("stride") * DTYPE_BYTES[table.dtype], most)
    return fetched


def _strided_work(table: OpTable) -> Work:
    """The same forward and backward, which reads dY and writes both gradients."""
    elements, size = table.column("b") * table.column("h"), DTYPE_BYTES[table.dtype]
    even = elements * (size + OUTPUT_BYTES[table.dtype])
    moved = even + elements * _strided(table, _SECTOR_BYTES)
    return Work((1.0 + table.column("backward")) * elements, moved, even + elements * size)


def _strided_rereads(table: OpTable) -> Rereads:
    """A burst for every element; it holds parts of as many rows, which a whole row passes between."""
    size, row = DTYPE_BYTES[table.dtype], table.column("h")
    burst = _strided(table, _BURST_BYTES)
    passed = row * (burst + size + OUTPUT_BYTES[table.dtype])
    nothing = np.zeros(len(table))
    return Rereads(table.column("b") * row * (burst - size), nothing, passed, nothing)


# Clocks of an SM per random number: of V100, MI100 and MI210 in training (docs/explanation/notebook.md).
_RANDOM_CLOCKS = 3.5
MASK_BYTES = 1.0


def _dropout_work(table: OpTable) -> Work:
    elements = table.column("b") * table.column("h")
    moved = elements * ((DTYPE_BYTES + OUTPUT_BYTES)[table.dtype] + MASK_BYTES)
    return Work(2.0 * elements, moved, moved)


def _dropout_rereads(table: OpTable) -> Rereads:
    """Nothing is read again; backward has the mask and draws nothing."""
    nothing = np.zeros(len(table))
    drawn = table.column("b") * table.column("h") * (1.0 - table.column("backward"))
    return Rereads(nothing, nothing, nothing, _RANDOM_CLOCKS * drawn)


_ROWS = (Dim("b", "rows"), Dim("h", "elements of a row"))
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

FLAT_OPS = tuple(
    Op(name, "elementwise", (*_ROWS, *COMMON), _work(forward, backward), handed=handed_rows)
    for name, (forward, backward) in _COSTS.items()
)
_STRIDE = Dim("stride", "elements between a row's neighbours in the tensor that is added")
ADD_STRIDED = Op(
    "add_strided",
    "elementwise",
    (*_ROWS, _STRIDE, *COMMON),
    _strided_work,
    rereads=_strided_rereads,
    handed=handed_rows,
)
DROPOUT = Op("dropout", "elementwise", (*_ROWS, *COMMON), _dropout_work, rereads=_dropout_rereads, handed=handed_rows)
ELEMENTWISE_OPS = (*FLAT_OPS, ADD_STRIDED, DROPOUT)
