"""Kernels over one dimension, without reductions."""

from __future__ import annotations

import numpy as np

from app.measure.kernel_cases.case import WORD, Array, Case, counts, floats, line, parts, zeros

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
