"""Products of tensor units whose operands cannot be loaded by 16 bytes, as their rows are not whole multiples of it.

Libraries run them on kernels of older GPUs, in which each thread loads as many elements at once as the rows allow. Then
loads bound them, at a rate of SMs and clock whatever the tensor units reach: on our H100 and H200 cuBLAS takes two to
six times as long as for aligned sizes (`python -m benchmarks.alignment`). Where libraries copy operands to padded rows
instead (`Op.padded`), the copies alone load so.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from app.coefficients import Coefficients
from app.ops.base import Op
from app.ops.figures import Products
from app.tables.arrays import Bools, Floats
from app.tables.ops import DTYPE_BYTES, DTYPES, OpTable

_FITTED = Coefficients("operators")

# Elements of 16 bytes in the formats whose kernels load so, by code; 1 in others. Serving stacks pad narrower ones.
LOAD_BYTES = 16
_LOADED_SO = np.isin(DTYPES, ("tf32", "fp16", "bf16"))
_MOST = np.where(_LOADED_SO, LOAD_BYTES / DTYPE_BYTES, 1.0)
# FLOPs of an SM per clock where threads load one element at once, and two or four; what products are padded to, rows
# and columns and the dimension summed over; and elements that an SM accesses per clock (app.steps.corrections).
_ONE_AT_ONCE, _SOME_AT_ONCE = _FITTED.each("loads_one_at_once", "loads_some_at_once")
_TILE, _STEP = 64.0, 32.0
ACCESSES_PER_CLOCK = _FITTED.number("accesses_per_clock")


class Alignment(NamedTuple):
    """How operands of n rows are loaded, [n] each.

    at_once  most elements, a power of two, by which all rows of an operand can be loaded, up to 16 bytes, float64
    aligned  bool, True where that is 16 bytes, or kernels of the format do not load so
    usual    bool, True where kernels are those of aligned operands, if only of copies of these
    """

    at_once: Floats
    aligned: Bools
    usual: Bools


def alignment_of(op: Op, table: OpTable) -> Alignment | None:
    """Return the alignment of rows; None for operators whose kernels load any row alike."""
    if op.row_sizes is None:
        return None
    most: Floats = _MOST[table.dtype]
    at_once = most
    for sizes in op.row_sizes(table):
        whole = sizes.astype(np.int64)
        at_once = np.where(whole > 0, np.minimum(at_once, whole & -whole), at_once)
    aligned = at_once >= most
    return Alignment(at_once, aligned, aligned if op.padded is None else aligned | op.padded(table))


def misaligned_clocks(op: Op, table: OpTable, alignment: Alignment, products: Products | None, moved: Floats) -> Floats:
    """Return the SM clocks that products and loads of rows take that are not aligned, float64 [n]; 0 for others.

    `moved`: bytes of operands and results.
    """
    if products is None:
        return np.zeros(table.kind.size)
    batch, m, n, k = products
    whole = 2.0 * batch * _padded(m, _TILE) * _padded(n, _TILE) * _padded(k, _STEP)
    clocks = np.where(alignment.usual, 0.0, whole / np.where(alignment.at_once > 1.0, _SOME_AT_ONCE, _ONE_AT_ONCE))
    clocks += moved / DTYPE_BYTES[table.dtype] / (alignment.at_once * ACCESSES_PER_CLOCK)
    clocks_of_rows: Floats = np.where(alignment.aligned, 0.0, clocks)
    return clocks_of_rows


def _padded(size: Floats, to: float) -> Floats:
    padded: Floats = np.ceil(size / to) * to
    return padded
