"""The Pareto set: rows that no other row beats in every respect."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def pareto(costs: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return whether each row of `costs` [n, criteria] (less is better) is undominated, bool [n].

    A row dominates another if it is nowhere worse and somewhere better. An unknown cost (NaN) counts as infinite.
    """
    known = np.where(np.isnan(costs), np.inf, costs)
    no_worse = np.all(known[:, None, :] <= known[None, :, :], axis=2)
    better = np.any(known[:, None, :] < known[None, :, :], axis=2)
    best: NDArray[np.bool_] = ~np.any(no_worse & better, axis=0)
    return best
