"""Matrix products: `linear`, y[m, n] = x[m, k] W[n, k]^T, and `bmm`, b times (m x k)(k x n).

FLOPs = 2 b m n k (a multiply-add counts two); bytes = b (m k + k n + m n) elements, each operand once (the BLAS
convention, and NeuSight's). Backward is two products of the same size, dX = dY W and dW = dY^T X, so twice both.
"""

from __future__ import annotations

from collections.abc import Callable

from app.ops.base import COMMON, Dim, Floats, Op, Products, Work
from app.tables.ops import DTYPE_BYTES, OUTPUT_BYTES, WEIGHT_BYTES, OpTable


def product_work(products: Products, table: OpTable, second_bytes: Floats) -> Work:
    """Work of matrix products; `second_bytes` [n] is the size of an element of the second operand."""
    batch, m, n, k = products
    passes = 1.0 + table.column("backward")
    first = batch * m * k * DTYPE_BYTES[table.dtype]
    second = batch * k * n * second_bytes
    result = batch * m * n * OUTPUT_BYTES[table.dtype]
    distinct = passes * (first + second) + result  # backward: both operands, both gradients, and dY
    return Work(2.0 * passes * batch * m * n * k, passes * (first + second + result), distinct)


def linear_products(table: OpTable) -> Products:
    """One product per row."""
    m = table.column("m")
    return Products(m * 0.0 + 1.0, m, table.column("n"), table.column("k"))


def bmm_products(table: OpTable) -> Products:
    """`b` products per row."""
    return Products(table.column("b"), table.column("m"), table.column("n"), table.column("k"))


def linear_work(table: OpTable) -> Work:
    """Work of fully connected layers."""
    return product_work(linear_products(table), table, WEIGHT_BYTES[table.dtype])


def bmm_work(table: OpTable) -> Work:
    """Work of batched matrix products."""
    return product_work(bmm_products(table), table, DTYPE_BYTES[table.dtype])


def _handed(products: Callable[[OpTable], Products]) -> Callable[[OpTable], Floats]:
    """The first operand."""

    def handed(table: OpTable) -> Floats:
        batch, m, _, k = products(table)
        first: Floats = batch * m * k * DTYPE_BYTES[table.dtype]
        return first

    return handed


_ROWS = Dim("m", "rows of the first matrix (linear: batch x sequence)")
_COLUMNS = Dim("n", "columns of the second matrix (linear: features out)")
_DEPTH = Dim("k", "the dimension summed over (linear: features in)")

LINEAR = Op(
    "linear",
    "linear",
    (_ROWS, _COLUMNS, _DEPTH, *COMMON),
    linear_work,
    products=linear_products,
    handed=_handed(linear_products),
)
BMM = Op(
    "bmm",
    "bmm",
    (Dim("b", "matrices in the batch"), _ROWS, _COLUMNS, _DEPTH, *COMMON),
    bmm_work,
    products=bmm_products,
    handed=_handed(bmm_products),
)
GEMM_OPS = (LINEAR, BMM)
