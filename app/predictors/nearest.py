"""Nearest neighbour by linear search, which is faster than a tree for few points and does not load SciPy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from app.runtime.compiled import compiled, compiled_per_row
from app.tables.arrays import Ints

Points = NDArray[np.float32]


@compiled_per_row
def nearest(point: Points, shape: Points, first: int, past: int) -> int:
    """Return the row of `point[first:past]` nearest to `shape` [axes], the first of equals; -1 if there are none."""
    best, least = -1, np.inf
    for k in range(first, past):
        distance = 0.0
        for axis in range(shape.shape[0]):
            difference = point[k, axis] - shape[axis]
            distance += difference * difference
        if distance < least:
            best, least = k, distance
    return best


@compiled
def nearest_of(point: Points, shape: Points, first: Ints, past: Ints, row: Ints) -> None:
    """Fill `row` [n] with `nearest` to `shape[q]` [n, axes] among `point[first[q]:past[q]]` for every q."""
    for q in range(len(row)):
        row[q] = nearest(point, shape[q], first[q], past[q])
