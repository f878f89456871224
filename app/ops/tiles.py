"""Tiles of matrix products, and their wave efficiency.

A product of m x n outputs is cut into tiles; every tile is one block's work, and blocks run in waves over the SMs
(NeuSight's tile and wave decomposition). Libraries choose among tiles like CANDIDATES (CUTLASS, cuBLAS kernel names).
Where tiles are fewer than SMs the summed dimension may be cut too (split-K), in pieces of at least SPLIT_DEPTH. A last
wave that is not full costs its part, not a whole wave as in NeuSight: an SM runs the fewer blocks it has the faster,
what idles leaves board power to the rest, and libraries deal tiles out evenly (docs/explanation/notebook.md). It costs
a whole one where every block has the same tile, the only one that there is a kernel of.
"""

from __future__ import annotations

from math import ceil, floor
from typing import NamedTuple

import numpy as np

from app.coefficients import Coefficients
from app.ops.figures import Products
from app.tables.arrays import Floats

_FITTED = Coefficients("operators")

CANDIDATES = np.array(
    [(256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (64, 32), (32, 64), (32, 32), (16, 64)],
    dtype=np.float64,
)
SPLIT_DEPTH = 256.0
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


class Grid(NamedTuple):
    """Products tiled by every candidate, float64 [candidates, n].

    blocks  tiles of all products of a row
    fill    part of the tiles' multiply-adds that outputs need
    splits  most pieces of the summed dimension (split-K), [n]
    """

    blocks: Floats
    fill: Floats
    splits: Floats

    @classmethod
    def empty(cls, n: int) -> Grid:
        """Room for n rows."""
        return cls(np.empty((len(CANDIDATES), n)), np.empty((len(CANDIDATES), n)), np.empty(n))


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
