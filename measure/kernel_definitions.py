"""The cross-GPU kernels paper's 16 CUDA kernels (its section 5): what a launch of each does, and at which sizes.

Sizes are those of its table 2 and beyond. `one_store`, beside them, is what a launch costs by itself. Counts are those
of a kernel workload (docs/reference/nomenclature.md). FLOPs are the algorithm's: a sum of n numbers is n, and the zeros
around an image count. Bytes are of each array once; lanes that lie eight words apart move a sector of 32 bytes each;
words that only atomics touch are in `atomic_operations` alone. Lane operations are loads, stores and atomics, and the
steps of loops without any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Array = NDArray[Any]
Extent = tuple[int, int]

WORD = 4
LINE = 256  # lanes of a block over one dimension


@dataclass(frozen=True, slots=True)
class Case:
    """One launch of one kernel, before any compiler has seen it.

    kernel, source  the function, and the file in measure/cuda that holds it
    grid, block     blocks and lanes in x and y
    counts          fields of a kernel workload that its definition gives
    draw            its arguments in the order of its parameters: arrays, and numbers of the parameters' types
    result          which of them it writes
    expected        what that one holds afterwards, by NumPy, from the arguments before
    """

    kernel: str
    source: str
    grid: Extent
    block: Extent
    counts: Mapping[str, Any]
    draw: Callable[[np.random.Generator], Sequence[Any]]
    result: int
    expected: Callable[..., Array]


def counts(
    size: Mapping[str, int], flops: int, moved: int, lanes: int, pattern: str = "coalesced", **more: float
) -> dict[str, Any]:
    """Fields of a workload that touches each byte once, unless `more` says otherwise."""
    work = {"flops": flops, "bytes": moved, "working_set_bytes": moved, "lane_operations": lanes}
    return {"dtype": "fp32", "access_pattern": pattern, "size": dict(size)} | work | more


def parts(whole: int, part: int) -> int:
    """How many parts cover the whole."""
    return -(-whole // part)


def line(n: int) -> tuple[Extent, Extent]:
    """Grid and block of one lane per element."""
    return (parts(n, LINE), 1), (LINE, 1)


def plane(rows: int, cols: int, edge: int) -> tuple[Extent, Extent]:
    """The same over two dimensions, by square blocks."""
    return (parts(cols, edge), parts(rows, edge)), (edge, edge)


def floats(random: np.random.Generator, *shape: int) -> Array:
    """Standard normal, FP32."""
    return random.standard_normal(shape, dtype=np.float32)


def zeros(*shape: int) -> Array:
    """What a kernel writes over."""
    return np.zeros(shape, np.float32)


SECTOR = 32  # bytes that a lane moves at least
STEPS = 64  # of either branch of vector_add_divergent


def one_store(blocks: int = 1) -> Case:
    """One lane of every block stores one word."""
    work = counts({"n": blocks}, 0, WORD * blocks, blocks)
    return Case("one_store", "launch", (blocks, 1), (32, 1), work, lambda _: (zeros(blocks),), 0, np.ones_like)


def vector_add(n: int) -> Case:
    """Elements a + b."""
    return Case(
        *("vector_add", "stream", *line(n), counts({"n": n}, n, 3 * WORD * n, 3 * n)),
        draw=lambda random: (floats(random, n), floats(random, n), zeros(n), np.int32(n)),
        result=2,
        expected=lambda a, b, c, n: a + b,
    )


def saxpy(n: int) -> Case:
    """Alpha x + y in place of y, which stays finite over many launches."""
    return Case(
        *("saxpy", "stream", *line(n), counts({"n": n}, 2 * n, 3 * WORD * n, 3 * n)),
        draw=lambda random: (np.float32(0.7), floats(random, n), floats(random, n), np.int32(n)),
        result=2,
        expected=lambda alpha, x, y, n: alpha * x + y,
    )


def strided_copy_8(n: int) -> Case:
    """Every eighth of n elements."""
    lanes = parts(n, 8)
    work = counts({"n": n}, 0, 2 * SECTOR * lanes, 2 * lanes, "strided", stride_bytes=SECTOR)
    return Case(
        *("strided_copy_8", "stream", *line(lanes), work),
        draw=lambda random: (floats(random, n), zeros(n), np.int32(n)),
        result=1,
        expected=lambda x, out, n: x * (np.arange(n) % 8 == 0),
    )


def random_access(n: int) -> Case:
    """Elements x[index], n indices drawn with repeats."""
    return Case(
        *("random_access", "stream", *line(n), counts({"n": n}, 0, 3 * WORD * n, 3 * n, "random")),
        draw=lambda random: (floats(random, n), random.integers(n, size=n, dtype=np.int32), zeros(n), np.int32(n)),
        result=2,
        expected=lambda x, index, out, n: x[index],
    )


def vector_add_divergent(n: int) -> Case:
    """Elements a + b or a - b, as pseudo-random numbers tell that even and odd lanes draw in different ways."""
    work = counts({"n": n}, n, 3 * WORD * n, (3 + STEPS) * n, branch_divergence=1.0)
    return Case(
        *("vector_add_divergent", "stream", *line(n), work),
        draw=lambda random: (floats(random, n), floats(random, n), zeros(n), np.int32(n)),
        result=2,
        expected=lambda a, b, c, n: a + np.where(_drawn(n) >> 31, b, -b),
    )


def _drawn(n: int) -> Array:
    """State of every lane's generator after its steps: products and differing bits if even, else xorshift."""
    even, odd = np.arange(1, n + 1, dtype=np.uint32), np.arange(1, n + 1, dtype=np.uint32)
    for _ in range(STEPS):
        even = np.uint32(1664525) * even ^ np.uint32(1013904223)
        odd ^= odd << np.uint32(13)
        odd ^= odd >> np.uint32(17)
        odd ^= odd << np.uint32(5)
    return np.where(np.arange(n) % 2 == 0, even, odd)


# Edges of a block without and with shared memory.
SQUARE, TILE = 16, 32


def _transpose(kernel: str, rows: int, cols: int, edge: int, work: Mapping[str, Any]) -> Case:
    return Case(
        *(kernel, "transpose", *plane(rows, cols, edge), work),
        draw=lambda random: (floats(random, rows, cols), zeros(cols, rows), np.int32(rows), np.int32(cols)),
        result=1,
        expected=lambda x, out, rows, cols: x.T,
    )


def naive_transpose(rows: int, cols: int) -> Case:
    """Transposed by strided stores."""
    n = rows * cols
    size = {"rows": rows, "cols": cols}
    work = counts(size, 0, 2 * WORD * n, 2 * n, "strided", stride_bytes=WORD * rows)
    return _transpose("naive_transpose", rows, cols, SQUARE, work)


def shared_transpose(rows: int, cols: int) -> Case:
    """Transposed through shared memory."""
    n = rows * cols
    return _transpose(
        "shared_transpose", rows, cols, TILE, counts({"rows": rows, "cols": cols}, 0, 2 * WORD * n, 4 * n)
    )


def _matmul(kernel: str, n: int, edge: int, lanes: int, pattern: str) -> Case:
    return Case(
        *(kernel, "matmul", *plane(n, n, edge)),
        counts=counts({"rows": n, "cols": n}, 2 * n**3, 3 * WORD * n**2, lanes, pattern),
        draw=lambda random: (floats(random, n, n), floats(random, n, n), zeros(n, n), np.int32(n)),
        result=2,
        expected=lambda a, b, c, n: a @ b,
    )


def matmul_naive(n: int) -> Case:
    """Product a b, each lane a row by a column."""
    return _matmul("matmul_naive", n, SQUARE, n**2 * (2 * n + 1), "broadcast")


def matmul_tiled(n: int) -> Case:
    """Product a b by tiles in shared memory."""
    lanes = n**2 * (parts(n, TILE) * (2 + 2 + 2 * TILE) + 1)
    return _matmul("matmul_tiled", n, TILE, lanes, "coalesced")


def _conv2d(edge: int, rows: int, cols: int) -> Case:
    n, taps = rows * cols, edge**2
    moved = WORD * (2 * n + taps)
    return Case(
        *(f"conv2d_{edge}x{edge}", "conv2d", *plane(rows, cols, SQUARE)),
        counts=counts({"rows": rows, "cols": cols}, 2 * taps * n, moved, (2 * taps + 1) * n),
        draw=lambda random: (
            *(floats(random, rows, cols), floats(random, edge, edge), zeros(rows, cols)),
            *(np.int32(rows), np.int32(cols)),
        ),
        result=2,
        expected=_convolved,
    )


def _convolved(image: Array, taps: Array, out: Array, rows: int, cols: int) -> Array:
    windows = sliding_window_view(np.pad(image, len(taps) // 2), taps.shape)
    convolved: Array = np.einsum("rcyx,yx->rc", windows, taps)
    return convolved


def conv2d_3x3(rows: int, cols: int) -> Case:
    """3 x 3 taps over one channel."""
    return _conv2d(3, rows, cols)


def conv2d_7x7(rows: int, cols: int) -> Case:
    """7 x 7 taps over one channel."""
    return _conv2d(7, rows, cols)


BINS = 256
TABLE = 1024  # words that a block of shared_bank_conflict reads


def _reduction(kernel: str, n: int, inputs: int, expected: Callable[..., Array]) -> Case:
    """Blocks of 256 lanes leave the partial sums of 512 elements each: two loads a lane, then a tree."""
    blocks = parts(n, 2 * LINE)
    lanes = inputs * n + blocks * (LINE + 3 * (LINE - 1) + 2)
    return Case(
        *(kernel, "reduce", (blocks, 1), (LINE, 1)),
        counts=counts({"n": n}, inputs * n, WORD * (inputs * n + blocks), lanes),
        draw=lambda random: (*(floats(random, n) for _ in range(inputs)), zeros(blocks), np.int32(n)),
        result=inputs,
        expected=expected,
    )


def _partial(x: Array) -> Array:
    """Sums of 512 elements each."""
    sums: Array = np.add.reduceat(x, np.arange(0, len(x), 2 * LINE))
    return sums


def reduce_sum(n: int) -> Case:
    """Sums of 512 elements each."""
    return _reduction("reduce_sum", n, 1, lambda x, out, n: _partial(x))


def dot_product(n: int) -> Case:
    """Sums of 512 products each."""
    return _reduction("dot_product", n, 2, lambda x, y, out, n: _partial(x * y))


def histogram(n: int) -> Case:
    """Counts of n values in 256 bins: each block counts in shared memory, then adds to the bins of all."""
    grid, block = line(n)
    work = counts({"n": n}, 0, WORD * n, 2 * n + 3 * BINS * grid[0])
    work |= {"atomic_operations": n + BINS * grid[0], "atomic_addresses": BINS * (grid[0] + 1)}
    return Case(
        *("histogram", "atomics", grid, block, work),
        draw=lambda random: (
            *(random.integers(BINS, size=n, dtype=np.int32), np.zeros(BINS, np.uint32)),
            np.int32(n),
        ),
        result=1,
        expected=lambda values, bins, n: np.bincount(values, minlength=BINS).astype(np.uint32),
    )


def atomic_hotspot(n: int, iterations: int) -> Case:
    """N lanes add to one counter, time and again."""
    updates = n * iterations
    size = {"n": n, "iterations": iterations}
    return Case(
        *("atomic_hotspot", "atomics", *line(n)),
        counts=counts(size, 0, 0, updates, "broadcast", atomic_operations=updates, atomic_addresses=1),
        draw=lambda _: (np.zeros(1, np.uint32), np.int32(n), np.int32(iterations)),
        result=0,
        expected=lambda counter, n, iterations: counter + np.uint32(n * iterations),
    )


def shared_bank_conflict(blocks: int, ways: int, iterations: int) -> Case:
    """Lanes sum words of a table in shared memory; `ways` of a warp meet in one bank."""
    lanes = TABLE * blocks
    size = {"n": lanes, "iterations": iterations}
    work = counts(size, lanes * iterations, 2 * WORD * lanes, lanes * (iterations + 3), bank_conflict_ways=ways)
    work["working_set_bytes"] = WORD * (lanes + TABLE)
    return Case(
        *("shared_bank_conflict", "shared", (blocks, 1), (TABLE, 1), work),
        draw=lambda random: (floats(random, TABLE), zeros(lanes), np.int32(ways), np.int32(iterations)),
        result=1,
        expected=lambda table, out, ways, iterations: np.tile(_conflicting(table, ways, iterations), blocks),
    )


def _conflicting(table: Array, ways: int, iterations: int) -> Array:
    """Sum of every lane of a block."""
    at = np.arange(TABLE)[:, None] * ways + 32 * np.arange(iterations)
    sums: Array = table[at % TABLE].sum(axis=1)
    return sums


# Sizes from the paper's medium to its extra large one, its small one, and one beyond every cache.
_LINES = [(2**20,), (2**24,), (2**18,), (2**22,), (2**26,)]
_PLANES = [(edge, edge) for edge in (1024, 4096, 512, 2048, 8192)]
_MATRICES = [(512,), (2048,), (256,), (1024,)]
_HOT = [(n, iterations) for n in (2**20, 2**22, 2**18) for iterations in (100, 50)]
# The more lanes meet in a bank, the fewer steps, so that all take about as long.
_BANKS = [(1024, 32, 256), (1024, 1, 8192), (1024, 4, 2048), (1, 32, 256), (1024, 16, 512)]
# The most telling sizes first.
_SUITE: Mapping[Callable[..., Case], Sequence[tuple[int, ...]]] = {
    vector_add: _LINES,
    saxpy: _LINES,
    strided_copy_8: _LINES,
    random_access: _LINES,
    vector_add_divergent: _LINES,
    naive_transpose: _PLANES,
    shared_transpose: _PLANES,
    matmul_naive: _MATRICES,
    matmul_tiled: _MATRICES,
    conv2d_3x3: _PLANES,
    conv2d_7x7: _PLANES,
    reduce_sum: _LINES,
    dot_product: _LINES,
    histogram: _LINES,
    atomic_hotspot: _HOT,
    shared_bank_conflict: _BANKS,
}
# Sizes that no block divides, against which each kernel is checked.
_RAGGED: Mapping[Callable[..., Case], tuple[int, ...]] = {
    one_store: (3,),
    **dict.fromkeys(_SUITE, (1000,)),
    **dict.fromkeys((naive_transpose, shared_transpose, conv2d_3x3, conv2d_7x7), (70, 45)),
    **dict.fromkeys((matmul_naive, matmul_tiled), (45,)),
    atomic_hotspot: (1000, 3),
    shared_bank_conflict: (2, 8, 5),
}
CHECKS: Mapping[str, Case] = {kernel.__name__: kernel(*size) for kernel, size in _RAGGED.items()}


def cases() -> Iterator[Case]:
    """The suite: every kernel at its most telling size, then every kernel at its next one, and so on."""
    yield one_store()
    for sizes in zip_longest(*_SUITE.values()):
        for kernel, size in zip(_SUITE, sizes, strict=True):
            if size is not None:
                yield kernel(*size)
