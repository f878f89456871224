"""What a predictor answers: never a bare number."""

from __future__ import annotations

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
    """A predictor's middle, before the engine adds hardware limit and interval.

    latency_s  float64 [n], seconds; NaN where the predictor does not support the row
    bound      int [n], code into BOUNDS
    support    int [n], code into SUPPORTS
    group      int [n], residual group: code into the NAMES of app.predictors.intervals.groups
    stretch    float64 [n], how many times as wide as its group's a row's interval is, in log space; None: once
    limit_s    float64 [n], the hardware limit where the predictor has found it, and all its own answers keep to it
    """

    latency_s: Floats
    bound: Ints
    support: Ints
    group: Ints
    stretch: Floats | None = None
    limit_s: Floats | None = None


@dataclass(frozen=True, slots=True)
class Predictions:
    """Finished answers, n rows.

    latency_s, low_s, high_s  float64 [n], seconds, low <= latency <= high, none under the hardware limit
    limit_s    float64 [n], the hardware limit
    bound, support, group  as in Estimate
    answered   bool [n], False where the roofline answered because the predictor had no support
    """

    latency_s: Floats
    low_s: Floats
    high_s: Floats
    limit_s: Floats
    bound: Ints
    support: Ints
    group: Ints
    answered: NDArray[np.bool_]
