"""Kernels whose lanes meet: reductions, atomics, banks of shared memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from app.measure.kernel_cases.case import LINE, WORD, Array, Case, counts, floats, line, parts, zeros

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
