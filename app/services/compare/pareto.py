"""Which GPUs are worth a look: those that no other one beats in every respect."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def pareto(costs: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Rows of `costs` [n, criteria], less is better, that no other row dominates, bool [n].

    One row dominates another that is nowhere better and somewhere worse. An unknown cost (NaN) is the worst there is.
    """
    known = np.where(np.isnan(costs), np.inf, costs)
    no_worse = np.all(known[:, None, :] <= known[None, :, :], axis=2)
    better = np.any(known[:, None, :] < known[None, :, :], axis=2)
    best: NDArray[np.bool_] = ~np.any(no_worse & better, axis=0)
    return best
