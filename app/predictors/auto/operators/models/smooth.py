"""Smooth correction fitted to few rows, which fades with the distance from the measured shapes.

The kernel (1 + r) exp(-r), Matérn 3/2 (Rasmussen and Williams 2006, section 4.2), r the distance over one length per
column; fitted in learning.calibration.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.runtime.compiled import compiled
from app.tables.arrays import Floats, Singles

# Decimals that single precision keeps: values that differ by less are equal.
_DIGITS = 4


class Smooth(NamedTuple):
    """Sum over p points of weight x (1 + r) exp(-r).

    column  int16 [d], rows of the features that matter
    scale   float32 [d], one over their lengths
    point   float32 [p, d], measured rows, scaled
    weight  float32 [p]
    """

    column: NDArray[np.int16]
    scale: Singles
    point: Singles
    weight: Singles

    def measured(self, column: int) -> Floats:
        """Return the measured values of a column, ascending; empty if the smooth part does not depend on it."""
        here = np.flatnonzero(self.column == column)
        if not len(here) or not len(self.point):
            return np.empty(0)
        values = self.point[:, here[0]].astype(np.float64) / self.scale[here[0]]
        return np.unique(values.round(_DIGITS))


NOTHING = Smooth(np.empty(0, np.int16), np.empty(0, np.float32), np.empty((0, 0), np.float32), np.empty(0, np.float32))


@compiled
def add_smooth(features: Singles, smooth: Smooth, share: float, total: Floats) -> None:
    """Add `share` times the correction to total [m], for features float32 [columns, m]."""
    column, scale, point, weight = smooth
    if not len(weight):
        return
    squared, summed = np.empty(len(total)), np.zeros(len(total))
    for p in range(len(weight)):
        squared[:] = 0.0
        for d in range(len(column)):
            values, over, measured = features[column[d]], scale[d], point[p, d]
            for k in range(len(total)):  # over rows, which vectorises
                gap = values[k] * over - measured
                squared[k] += gap * gap
        for k in range(len(total)):
            distance = np.sqrt(squared[k])
            summed[k] += weight[p] * (1.0 + distance) * np.exp(-distance)
    for k in range(len(total)):
        total[k] += share * summed[k]
