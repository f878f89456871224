"""Products of tensor units whose operands cannot be loaded by 16 bytes, as their rows are not whole multiples of it.

Libraries run them on kernels of older GPUs, in which each thread loads as many elements at once as the rows allow. Then
loads bound them, at a rate of SMs and clock whatever the tensor units reach: on our H100 and H200 cuBLAS takes two to
six times as long as for aligned sizes (`python -m benchmarks.alignment`). Where libraries copy operands to padded rows
instead (`Op.padded`), the copies alone load so.
"""

from __future__ import annotations

import numpy as np

from app.ops.base import Op
from app.ops.figures import Products
from app.tables.arrays import Bools, Floats
from app.tables.ops import DTYPE_BYTES, DTYPES, OpTable

# Elements of 16 bytes in the formats whose kernels load so, by code; 1 in others. Serving stacks pad narrower ones.
LOAD_BYTES = 16
_LOADED_SO = np.isin(DTYPES, ("tf32", "fp16", "bf16"))
_MOST = np.where(_LOADED_SO, LOAD_BYTES / DTYPE_BYTES, 1.0)
# FLOPs of an SM per clock where threads load one element at once, and two or four; what products are padded to, rows
# and columns and the dimension summed over; and elements that an SM accesses per clock (app.graphs.single_loads). By
# eye from products of over 20 us in BF16 and FP16 on our H200.
_ONE_AT_ONCE, _SOME_AT_ONCE = 550.0, 850.0
_TILE, _STEP = 64.0, 32.0
ACCESSES_PER_CLOCK = 3.5


def is_aligned(op: Op, table: OpTable) -> Bools:
    """Return where operands can be loaded by 16 bytes, or are not by the kernels of their format, bool [n]."""
    return _at_once(op, table) >= _MOST[table.dtype]


def is_usual(op: Op, table: OpTable) -> Bools:
    """Return where kernels are those of aligned operands, if only of copies of these, bool [n]."""
    usual = is_aligned(op, table)
    return usual if op.padded is None else usual | op.padded(table)


def misaligned_clocks(op: Op, table: OpTable, products: Products | None, moved: Floats) -> Floats:
    """Return the SM clocks that products and loads of rows take that are not aligned, float64 [n]; 0 for others.

    `moved`: bytes of operands and results.
    """
    if products is None or op.row_sizes is None:
        return np.zeros(len(table))
    at_once = _at_once(op, table)
    batch, m, n, k = products
    whole = 2.0 * batch * _padded(m, _TILE) * _padded(n, _TILE) * _padded(k, _STEP)
    if op.padded is not None:
        whole = np.where(op.padded(table), 0.0, whole)
    clocks = whole / np.where(at_once > 1.0, _SOME_AT_ONCE, _ONE_AT_ONCE)
    clocks += moved / DTYPE_BYTES[table.dtype] / (at_once * ACCESSES_PER_CLOCK)
    found: Floats = np.where(at_once >= _MOST[table.dtype], 0.0, clocks)
    return found


def _at_once(op: Op, table: OpTable) -> Floats:
    """Return the most elements, a power of two, by which all rows can be loaded, up to 16 bytes, [n]."""
    found: Floats = _MOST[table.dtype]
    for sizes in op.row_sizes(table) if op.row_sizes is not None else ():
        whole = sizes.astype(np.int64)
        found = np.where(whole > 0, np.minimum(found, whole & -whole), found)
    return found


def _padded(size: Floats, to: float) -> Floats:
    padded: Floats = np.ceil(size / to) * to
    return padded
