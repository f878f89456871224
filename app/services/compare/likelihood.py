"""Probability that one predicted figure is less than another, as log-normals as wide as their intervals.

A time has the half-widths ln(high / middle) / z and ln(middle / low) / z in log space, z the normal quantile of the
interval's coverage. Of two times only the halves that face each other matter: P(A < B) = Phi(ln(b / a) / s), s^2 =
s_A^2 + s_B^2 - 2 rho s_A s_B. `CORRELATION` is rho.
"""

from __future__ import annotations

from math import erfc, sqrt
from typing import NamedTuple, Protocol

import numpy as np

from app.predictors.intervals.prior import normal_quantile
from app.tables.arrays import Bools, Floats
from app.wire.prediction_form import Interval

# Correlation of the errors of two GPUs on one workload, in units of their intervals. On NeuSight's measured models,
# each GPU left out in turn, it is 0.05 (`gpucast evaluate ranking --rows 250`): too small to use.
CORRELATION = 0.0
# Clip of interval ends in log space, and the least spread: closer figures count as equal.
_WIDEST, _LEAST = 30.0, 1e-12


class Timed(Protocol):
    """Anything with a time and its interval, such as an entry of POST /predict or of POST /compare."""

    @property
    def latency_ms(self) -> float:
        """The estimated time, ms."""

    @property
    def interval_ms(self) -> Interval:
        """Its interval."""


class Figures(NamedTuple):
    """One figure of n GPUs, float64 [n] each: the estimates, and the ends of their intervals of one coverage."""

    middle: Floats
    low: Floats
    high: Floats
    coverage: float


def probability_faster(a: Timed, b: Timed) -> float:
    """Return the probability that `a` takes less time than `b`."""
    both = [(timed.latency_ms, timed.interval_ms.low, timed.interval_ms.high) for timed in (a, b)]
    middle, low, high = np.array(both, dtype=np.float64).T
    return float(probability_less(Figures(middle, low, high, a.interval_ms.coverage))[0, 1])


def probability_less(figures: Figures) -> Floats:
    """Return the probability that figure i is less than figure j, float64 [n, n]; 0.5 on the diagonal."""
    middle = np.maximum(figures.middle, np.finfo(np.float64).tiny)
    z = max(normal_quantile(0.5 + 0.5 * figures.coverage), _LEAST)
    down = _log_ratio(middle, figures.low) / z
    up = _log_ratio(figures.high, middle) / z
    gap = np.log(middle)[None, :] - np.log(middle)[:, None]
    mine = np.where(gap >= 0, up[:, None], down[:, None])
    theirs = np.where(gap >= 0, down[None, :], up[None, :])
    spread = np.sqrt(np.maximum(mine**2 + theirs**2 - 2.0 * CORRELATION * mine * theirs, _LEAST**2))
    apart = gap / (spread * -sqrt(2.0))
    return np.array([0.5 * erfc(x) for x in apart.ravel().tolist()]).reshape(apart.shape)


def are_tied(figures: Figures) -> Bools:
    """Return statistically tied pairs, bool [n, n]; a figure is not tied with itself.

    With 80 % intervals a pair is tied if neither order has a probability of 90 %.
    """
    probability = probability_less(figures)
    sure: Bools = np.maximum(probability, 1.0 - probability) >= 0.5 + 0.5 * figures.coverage
    same: Bools = ~sure
    np.fill_diagonal(same, False)
    return same


def _log_ratio(high: Floats, low: Floats) -> Floats:
    """Return ln(high / low), clipped to 0 and _WIDEST."""
    ratio = np.log(np.maximum(high, np.finfo(np.float64).tiny)) - np.log(np.maximum(low, np.finfo(np.float64).tiny))
    within: Floats = np.clip(ratio, 0.0, _WIDEST)
    return within
