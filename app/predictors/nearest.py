"""The nearest of stored points: few enough that looking at each costs less than a tree of them, and SciPy's memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from app.runtime.compiled import compiled

Points = NDArray[np.float32]
Ints = NDArray[np.intp]


@compiled
def nearest(point: Points, shape: Points, first: int, past: int) -> int:
    """The point of `point[first:past]` [points, axes] nearest to `shape` [axes]; the first of several; -1 of none."""
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
def nearest_of(point: Points, shape: Points, first: Ints, past: Ints, found: Ints) -> None:
    """Fill `found` [n] with what `nearest` says of `shape[q]` [n, axes] among `point[first[q]:past[q]]`."""
    for q in range(len(found)):
        found[q] = nearest(point, shape[q], first[q], past[q])
