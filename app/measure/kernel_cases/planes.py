"""Kernels over two dimensions: transposes, matrix products, convolutions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from app.measure.kernel_cases.case import WORD, Array, Case, counts, floats, parts, plane, zeros

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
