"""How likely one GPU is to be the faster one: two predictions as log-normal, each as wide as its interval.

A time has the half-widths ln(high / middle) / z and ln(middle / low) / z in log space, z the normal quantile of the
interval's coverage. Of two times only the halves that face each other matter: P(A < B) = Phi(ln(b / a) / s), s^2 =
s_A^2 + s_B^2 - 2 rho s_A s_B. `CORRELATION` says where rho comes from.
"""

from __future__ import annotations

from math import erfc, sqrt
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from app.predictors.intervals.prior import normal_quantile
from app.wire.prediction_form import Interval

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

# Correlation of the errors of two GPUs on one workload, in units of their intervals. On NeuSight's measured models,
# each GPU left out in turn, it comes out as 0.05 (`gpucast evaluate ranking --rows 250`): too little to build on.
CORRELATION = 0.0
# Ends of intervals farther from the middle than this are as good as unknown; less than this apart are one figure.
_WIDEST, _LEAST = 30.0, 1e-12


class Timed(Protocol):
    """Anything with a time and its interval, such as an entry of POST /predict or of POST /compare."""

    @property
    def latency_ms(self) -> float:
        """The middle."""

    @property
    def interval_ms(self) -> Interval:
        """Its interval."""


class Figures(NamedTuple):
    """One figure of n GPUs, float64 [n] each: the middle, and the ends of an interval of some coverage."""

    middle: Floats
    low: Floats
    high: Floats
    coverage: float


def probability_faster(a: Timed, b: Timed) -> float:
    """The probability that `a` takes less time than `b`."""
    both = [(one.latency_ms, one.interval_ms.low, one.interval_ms.high) for one in (a, b)]
    middle, low, high = np.array(both, dtype=np.float64).T
    return float(probability_less(Figures(middle, low, high, a.interval_ms.coverage))[0, 1])


def probability_less(figures: Figures) -> Floats:
    """The probability that figure i is less than figure j, float64 [n, n]; the diagonal is a half."""
    middle = np.maximum(figures.middle, np.finfo(np.float64).tiny)
    z = max(normal_quantile(0.5 + 0.5 * figures.coverage), _LEAST)
    down = _log_ratio(middle, figures.low) / z
    up = _log_ratio(figures.high, middle) / z
    gap = np.log(middle)[None, :] - np.log(middle)[:, None]
    mine = np.where(gap >= 0, up[:, None], down[:, None])
    theirs = np.where(gap >= 0, down[None, :], up[None, :])
    spread = np.sqrt(np.maximum(mine**2 + theirs**2 - 2.0 * CORRELATION * mine * theirs, _LEAST**2))
    apart = gap / (spread * -sqrt(2.0))
    return np.array([0.5 * erfc(one) for one in apart.ravel().tolist()]).reshape(apart.shape)


def alike(figures: Figures) -> Bools:
    """Pairs that cannot be told apart, bool [n, n]: neither order is as likely as an end of the interval is sure.

    With 80 % intervals, neither is less than the other with a probability of 90 %. No figure is its own pair.
    """
    probability = probability_less(figures)
    sure: Bools = np.maximum(probability, 1.0 - probability) >= 0.5 + 0.5 * figures.coverage
    same: Bools = ~sure
    np.fill_diagonal(same, False)
    return same


def _log_ratio(high: Floats, low: Floats) -> Floats:
    """ln(high / low), within 0 and _WIDEST."""
    ratio = np.log(np.maximum(high, np.finfo(np.float64).tiny)) - np.log(np.maximum(low, np.finfo(np.float64).tiny))
    within: Floats = np.clip(ratio, 0.0, _WIDEST)
    return within
