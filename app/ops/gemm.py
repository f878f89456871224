"""Matrix products: `linear`, y[m, n] = x[m, k] W[n, k]^T, and `bmm`, b times (m x k)(k x n).

FLOPs = 2 b m n k (a multiply-add counts two); bytes = b (m k + k n + m n) elements, each operand once (the BLAS
convention, and NeuSight's). Backward is two products of the same size, dX = dY W and dW = dY^T X, so twice both.
"""

from __future__ import annotations

from collections.abc import Callable

from app.ops.base import COMMON, Dim, Op
from app.ops.figures import Prior, Products, Work
from app.ops.gradient import BIAS, FED, TRAINED, step
from app.ops.suite import PRODUCTS, Log, Made, Maker, Row, Space
from app.tables.arrays import Floats
from app.tables.ops import DTYPE_BYTES, DTYPES, OUTPUT_BYTES, WEIGHT_BYTES, OpTable


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


def _weights(table: OpTable) -> Floats:
    """Elements of W."""
    return table.column("n") * table.column("k")


def _row_sizes(table: OpTable) -> tuple[Floats, ...]:
    """Of W and y, and of x."""
    return table.column("n"), table.column("k")


def _activations(table: OpTable) -> Floats:
    """Elements of x."""
    return table.column("m") * table.column("k")


def _build_linear(make: Maker, row: Row) -> Made:
    """y[m, n] = x[m, k] W[n, k]^T, without a bias."""
    x, weight = make.normal(row["m"], row["k"]), make.normal(row["n"], row["k"])
    return Made(lambda: make.torch.nn.functional.linear(x, weight), (x, weight))


def _build_scaled(make: Maker, row: Row) -> Made:
    """The same in FP8 scaled per tensor: activations arrive in BF16 and are converted first, results are BF16."""
    torch, wide = make.torch, make.torch.bfloat16
    activations = torch.randn(row["m"], row["k"], dtype=wide, device=make.device)
    weight = torch.randn(row["n"], row["k"], device=make.device).to(make.dtype).t()
    scale = torch.ones((), device=make.device)
    return Made(lambda: torch._scaled_mm(activations.to(make.dtype), weight, scale, scale, out_dtype=wide), ())


def _build_bmm(make: Maker, row: Row) -> Made:
    """`b` products."""
    first, second = make.normal(row["b"], row["m"], row["k"]), make.normal(row["b"], row["k"], row["n"])
    return Made(lambda: make.torch.bmm(first, second), (first, second))


LINEAR = Op(
    "linear",
    "linear",
    (_ROWS, _COLUMNS, _DEPTH, *COMMON),
    linear_work,
    dtypes=DTYPES,
    prior=Prior.of("linear"),
    products=linear_products,
    handed=_handed(linear_products),
    weights=_weights,
    quantised=_activations,
    row_sizes=_row_sizes,
    configuration=("n", "k"),
    backward=(step("linear", "m", n="k", k="n", needs=FED), step("linear", m="n", n="k", k="m", needs=TRAINED), BIAS),
    saves=("input",),
    suite=Space(
        {"m": Log(1, 1 << 16), "n": Log(8, 1 << 16), "k": Log(8, 1 << 15)},
        (*PRODUCTS, "fp8"),
        _build_linear,
        share=4,
        build_fp8=_build_scaled,
        aligned=("n", "k"),
        swept={},
    ),
    usual={"m": (1, 16384), "n": (256, 16384), "k": (256, 16384)},
    example=dict.fromkeys("mnk", 4096),
)
BMM = Op(
    "bmm",
    "bmm",
    (Dim("b", "matrices in the batch"), _ROWS, _COLUMNS, _DEPTH, *COMMON),
    bmm_work,
    prior=Prior.of("bmm"),
    products=bmm_products,
    batched=True,
    handed=_handed(bmm_products),
    row_sizes=_row_sizes,
    backward=(step("bmm", "b", "m", n="k", k="n"), step("bmm", "b", "n", m="k", k="m")),
    saves=("input",),
    suite=Space(
        {"b": Log(1, 1024), **{name: Log(8, 8192) for name in "mnk"}}, PRODUCTS, _build_bmm, share=2, swept={"b": 8}
    ),
    usual={"b": (1, 512), **dict.fromkeys("mnk", (32, 2048))},
    example={"b": 64, "m": 1024, "n": 1024, "k": 128},
)
GEMM_OPS = (LINEAR, BMM)
