"""Tiles of matrix products, and how well they fill a device.

A product of m x n outputs is cut into tiles; every tile is one block's work, and blocks run in waves over the SMs
(NeuSight's tile and wave decomposition). Libraries choose among tiles like CANDIDATES (CUTLASS, cuBLAS kernel names).
Where tiles are fewer than SMs the summed dimension may be cut too (split-K), in pieces of at least SPLIT_DEPTH.
"""

from __future__ import annotations

from math import ceil, floor
from typing import NamedTuple

import numpy as np

from app.ops.base import Floats, Products

CANDIDATES = np.array(
    [(256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (64, 32), (32, 64), (32, 32), (16, 64)],
    dtype=np.float64,
)
_ROWS, _COLUMNS = CANDIDATES.T[:, :, None]
SPLIT_DEPTH = 256.0


class Grid(NamedTuple):
    """How products fall into every candidate tile, float64 [candidates, n].

    blocks  tiles of all products of a row
    fill    part of the tiles' elements that are outputs
    splits  pieces into which the summed dimension can be cut at most, [n]
    """

    blocks: Floats
    fill: Floats
    splits: Floats


def grid(products: Products) -> Grid:
    """Tiles of n rows of products."""
    batch, m, n, k = products
    blocks = batch * np.ceil(m / _ROWS) * np.ceil(n / _COLUMNS)
    fill = batch * m * n / (blocks * _ROWS * _COLUMNS)
    return Grid(blocks, fill, np.maximum(np.floor(k / SPLIT_DEPTH), 1.0))


def wave_efficiency(blocks: float, splits: float, sms: float) -> float:
    """Part of `sms` SMs that waves of `blocks` keep busy, each cut into at most `splits` where that fills them."""
    cut = min(max(floor(sms / blocks), 1.0), splits)
    waves = blocks * cut / sms
    return waves / ceil(waves)
