"""Predictions with bounds, support and intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.tables.arrays import Floats, Ints

BOUNDS = ("compute", "memory", "launch", "communication")
COMPUTE, MEMORY, LAUNCH, COMMUNICATION = range(4)
SUPPORTS = ("measured", "interpolated", "extrapolated")
MEASURED, INTERPOLATED, EXTRAPOLATED = range(3)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A predictor's estimates, before the engine adds hardware limits and intervals.

    latency_s  float64 [n], seconds; NaN if the predictor does not support the row
    bound      int [n], code into BOUNDS
    support    int [n], code into SUPPORTS
    group      int [n], residual group: code into the NAMES of app.bands.groups
    stretch    float64 [n], width of a row's interval relative to its group's, in log space; None: 1
    limit_s    float64 [n], hardware limit, if the predictor computes it and all its estimates respect it; else None
    half_width float64 [n], the row's own half-width at COVERAGE, in log space; None or NaN: the width of its group
    """

    latency_s: Floats
    bound: Ints
    support: Ints
    group: Ints
    stretch: Floats | None = None
    limit_s: Floats | None = None
    half_width: Floats | None = None


@dataclass(frozen=True, slots=True)
class Predictions:
    """n finished predictions.

    latency_s, low_s, high_s  float64 [n], seconds, low <= latency <= high, all at least the hardware limit
    limit_s    float64 [n], hardware limit, seconds
    bound, support, group  as in Estimate
    answered   bool [n], False for rows that the predictor does not support, which have the hardware limit
    """

    latency_s: Floats
    low_s: Floats
    high_s: Floats
    limit_s: Floats
    bound: Ints
    support: Ints
    group: Ints
    answered: NDArray[np.bool_]

    @classmethod
    def joined(cls, parts: Sequence[Predictions]) -> Predictions:
        """Return the predictions of all parts, one part after another."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__dataclass_fields__))

    def take(self, rows: Ints | slice) -> Predictions:
        """Return the predictions of these rows, in this order."""
        return Predictions(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))
