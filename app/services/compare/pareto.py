"""The Pareto set: rows that no other row beats in every respect."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_PAIR = 2


def pareto(costs: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return whether each row of `costs` [n, criteria] (less is better) is undominated, bool [n].

    A row dominates another if it is nowhere worse and somewhere better. An unknown cost (NaN) counts as infinite.
    """
    known = np.where(np.isnan(costs), np.inf, costs)
    if known.shape[1] == _PAIR and len(known):
        return _of_pairs(known)
    no_worse = np.all(known[:, None, :] <= known[None, :, :], axis=2)
    better = np.any(known[:, None, :] < known[None, :, :], axis=2)
    best: NDArray[np.bool_] = ~np.any(no_worse & better, axis=0)
    return best


def _of_pairs(known: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return the same of two criteria, in the time of a sort: thousands of rows are compared."""
    levels, level = np.unique(known[:, 0], return_inverse=True)
    least = np.full(len(levels), np.inf)
    np.minimum.at(least, level, known[:, 1])
    before = np.minimum.accumulate(least)[:-1]
    undominated = np.concatenate([[True], least[1:] < before])
    best: NDArray[np.bool_] = undominated[level] & (known[:, 1] == least[level])
    return best
