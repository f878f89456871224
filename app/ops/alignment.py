"""Products of tensor units whose operands cannot be loaded by 16 bytes, as their rows are not whole multiples of it.

Libraries run them on kernels of older GPUs, in which each thread loads as many elements at once as the rows allow. Then
loads bound them, at a rate of SMs and clock whatever the tensor units reach: on our H100 and H200 cuBLAS takes two to
six times as long as for aligned sizes (16384 x 768 x 50257, the logits of GPT-2, among them).
"""

from __future__ import annotations

import numpy as np

from app.ops.base import Op
from app.ops.figures import Products
from app.tables.arrays import Bools, Floats
from app.tables.ops import DTYPE_BYTES, DTYPE_CODE, OpTable

# Formats whose kernels load 16 bytes at once. Serving stacks pad narrower ones.
_FORMATS = [DTYPE_CODE[name] for name in ("tf32", "fp16", "bf16")]
_LOAD_BYTES = 16.0
# FLOPs of an SM per clock where threads load one element at once, and two or four; what products are padded to, rows
# and columns and the dimension summed over; and elements that an SM accesses per clock (app.graphs.single_loads). By
# eye from products of over 20 us in BF16 and FP16 on our H200.
_ONE_AT_ONCE, _SOME_AT_ONCE = 550.0, 850.0
_TILE, _STEP = 64.0, 32.0
_ACCESSES_PER_CLOCK = 3.5


def is_aligned(op: Op, table: OpTable) -> Bools:
    """Return where operands can be loaded by 16 bytes, or are not by the kernels of their format, bool [n]."""
    aligned: Bools = _at_once(op, table) * DTYPE_BYTES[table.dtype] >= _LOAD_BYTES
    return aligned


def misaligned_clocks(op: Op, table: OpTable, products: Products | None, moved: Floats) -> Floats:
    """Return the SM clocks that products and loads of rows take that are not aligned, float64 [n]; 0 for others.

    `moved`: bytes of operands and results.
    """
    if products is None or op.row_sizes is None:
        return np.zeros(len(table))
    at_once, size = _at_once(op, table), DTYPE_BYTES[table.dtype]
    batch, m, n, k = products
    whole = 2.0 * batch * _padded(m, _TILE) * _padded(n, _TILE) * _padded(k, _STEP)
    clocks = whole / np.where(at_once > 1.0, _SOME_AT_ONCE, _ONE_AT_ONCE)
    clocks += moved / size / (at_once * _ACCESSES_PER_CLOCK)
    found: Floats = np.where(at_once * size >= _LOAD_BYTES, 0.0, clocks)
    return found


def _at_once(op: Op, table: OpTable) -> Floats:
    """Return the most elements, a power of two, by which all rows can be loaded, up to 16 bytes, [n]."""
    most: Floats = _LOAD_BYTES / DTYPE_BYTES[table.dtype]
    if op.row_sizes is None:
        return most
    found = most.copy()
    for sizes in op.row_sizes(table):
        for elements in (4.0, 2.0, 1.0):
            found = np.where(sizes % (2.0 * elements) != 0.0, np.minimum(found, elements), found)
    chosen: Floats = np.where(np.isin(table.dtype, _FORMATS), found, most)
    return chosen


def _padded(size: Floats, to: float) -> Floats:
    padded: Floats = np.ceil(size / to) * to
    return padded
