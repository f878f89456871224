"""Log-normal distribution of a predicted time, as wide on each side of the estimate as its interval."""

from __future__ import annotations

from math import exp, inf, log
from statistics import NormalDist

from app.predictors.intervals.prior import normal_quantile
from app.wire.prediction_form import Interval

_TINY = 1e-300


def probability_within(middle_ms: float, interval: Interval, allowed_ms: float) -> float:
    """Return the probability that the true time is at most `allowed_ms`."""
    if allowed_ms <= 0 or middle_ms <= 0:
        return 1.0 if middle_ms <= 0 <= allowed_ms else 0.0
    if allowed_ms == inf:
        return 1.0
    gap = log(allowed_ms) - log(middle_ms)
    spread = _spread(middle_ms, interval, later=gap >= 0)
    if spread == 0.0:
        return 1.0 if gap >= 0 else 0.0
    return NormalDist().cdf(gap / spread)


def time_quantile_ms(middle_ms: float, interval: Interval, probability: float) -> float:
    """Return the time, ms, that is not exceeded with `probability`."""
    z = normal_quantile(probability)
    return middle_ms * exp(z * _spread(middle_ms, interval, later=z >= 0))


def _spread(middle_ms: float, interval: Interval, *, later: bool) -> float:
    """Return the standard deviation in log space above (`later`) or below the estimate."""
    z = normal_quantile(0.5 + 0.5 * interval.coverage)
    middle = max(middle_ms, _TINY)
    end = log(interval.high / middle) if later else log(middle / max(interval.low, _TINY))
    return max(end, 0.0) / z
