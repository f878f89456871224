"""Matrix products: `linear`, y[m, n] = x[m, k] W[n, k]^T, and `bmm`, b times (m x k)(k x n).

FLOPs = 2 b m n k (a multiply-add counts two); bytes = b (m k + k n + m n) elements, each operand once (the BLAS
convention, and NeuSight's). Backward is two products of the same size, dX = dY W and dW = dY^T X, so twice both.

A product of m x n outputs is cut into tiles; every tile is one block's work, and blocks run in waves over the SMs
(NeuSight's tile and wave decomposition). Libraries choose among tiles like CANDIDATES (CUTLASS, cuBLAS kernel names).
Where tiles are fewer than SMs the summed dimension may be cut too (split-K), in pieces of at least SPLIT_DEPTH. A last
wave that is not full costs its part, not a whole wave as in NeuSight: an SM runs the fewer blocks it has the faster,
what idles leaves board power to the rest, and libraries deal tiles out evenly (docs/explanation/notebook.md). It costs
a whole one where every block has the same tile, the only one that there is a kernel of.

Libraries run products of tensor units whose rows are no whole multiples of 16 bytes on kernels of older GPUs, in which
each thread loads as many elements at once as the rows allow. Then loads bound them, at a rate of SMs and clock whatever
the tensor units reach: on our H100 and H200 cuBLAS takes two to six times as long as for aligned sizes
(`python -m benchmarks.alignment`). Where libraries copy operands to padded rows instead (`Op.padded`), the copies alone
load so.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, floor
from typing import NamedTuple

import numpy as np

from app.coefficients import Coefficients
from app.ops.base import COMMON, Dim, Op
from app.ops.figures import Grid, Prior, Products, Work
from app.ops.gradient import BIAS, FED, TRAINED, step
from app.ops.suite import PRODUCTS, Log, Made, Maker, Row, Space
from app.tables.arrays import Bools, Floats
from app.tables.ops import DTYPE_BYTES, DTYPES, OUTPUT_BYTES, WEIGHT_BYTES, OpTable

_FITTED = Coefficients("operators")

CANDIDATES = np.array(
    [(256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (64, 32), (32, 64), (32, 32), (16, 64)],
    dtype=np.float64,
)
SPLIT_DEPTH = _FITTED.number("split_depth")
# What the first candidates, of which small kernels have none, are of rows that have products in another space instead
# (app.ops.base.Transformed): as fast as tiles of these sizes are. The first has kernels on GPUs before Ampere only, the
# third since; the second where there are tensor units, the fourth where there are none. The last is the plain product.
TRANSFORMED = np.array([(128, 64), (128, 128), (128, 128), (128, 128), (128, 64)], dtype=np.float64)
# How many of them libraries have for batches of products, from the largest: PyTorch's batched kernels in FP32 are of
# 64 x 64 at least, but for narrow ones of Volta and Turing (kernel names in NeuSight's rows).
BATCHED_CANDIDATES = 6
# Steps of the summed dimension that each of their tiles takes besides, to fetch its first operands and to store its
# results (docs/explanation/notebook.md).
BATCHED_STEPS = _FITTED.number("batched_steps")
# Elements of 16 bytes in the formats whose kernels load so, by code; 1 in others. Serving stacks pad narrower ones.
LOAD_BYTES = 16
_LOADED_SO = np.isin(DTYPES, ("tf32", "fp16", "bf16"))
_MOST = np.where(_LOADED_SO, LOAD_BYTES / DTYPE_BYTES, 1.0)
# FLOPs of an SM per clock where threads load one element at once, and two or four; what products are padded to, rows
# and columns and the dimension summed over; and elements that an SM accesses per clock (app.steps.corrections).
_ONE_AT_ONCE, _SOME_AT_ONCE = _FITTED.each("loads_one_at_once", "loads_some_at_once")
_TILE, _STEP = 64.0, 32.0
ACCESSES_PER_CLOCK = _FITTED.number("accesses_per_clock")


def fill_grid(products: Products, tiles: Grid) -> None:
    """Fill `tiles` for n rows of products; compiled where it is used."""
    for q in range(len(tiles.splits)):
        batch, m, n = products.batch[q], products.m[q], products.n[q]
        tiles.splits[q] = max(np.floor(products.k[q] / SPLIT_DEPTH), 1.0)
        for tile in range(len(CANDIDATES)):
            rows, columns = CANDIDATES[tile]
            blocks = batch * np.ceil(m / rows) * np.ceil(n / columns)
            tiles.blocks[tile, q], tiles.fill[tile, q] = blocks, batch * m * n / (blocks * rows * columns)


def as_batches(products: Products, tiles: Grid) -> None:
    """Change `tiles`, in place, to kernels for batches: no split-K, and the ends of every tile as overhead."""
    tiles.splits[:] = 1.0
    np.multiply(tiles.fill, products.k / (products.k + BATCHED_STEPS), out=tiles.fill)


def wave_efficiency(blocks: float, splits: float, sms: float, whole: bool) -> float:
    """Share of `sms` SMs that `blocks` keep busy, each split into at most `splits` parts where SMs are idle.

    `whole`: the last wave takes as long as the others.
    """
    parts = min(max(floor(sms / blocks), 1.0), splits)
    waves = blocks * parts / sms
    return waves / ceil(waves) if whole and waves > 1.0 else min(waves, 1.0)


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
    clocks = np.where(alignment.aligned, 0.0, clocks)
    return clocks


def _padded(size: Floats, to: float) -> Floats:
    padded: Floats = np.ceil(size / to) * to
    return padded


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
