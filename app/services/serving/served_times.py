"""Times of a served load with their intervals, from those of its steps and from measured loads."""

from __future__ import annotations

from math import exp, hypot, log

import numpy as np

from app.predictors.intervals.prior import width_at
from app.services.serving.figures import Times
from app.wire.prediction_form import Interval, Prediction
from app.wire.serving_form import ServedTime


def milliseconds(seconds: float) -> float | None:
    """Return milliseconds, or None for no time."""
    return seconds * 1e3 if np.isfinite(seconds) and seconds > 0.0 else None


def step_ends(step: Prediction, width: float) -> tuple[float, float, float]:
    """Return the interval of a step relative to its time, widened by log-space `width`, and its coverage."""
    middle, ends = step.latency_ms, step.interval_ms
    wide = width * width_at(ends.coverage)
    below, above = (hypot(log(max(one, 1e-9 * middle) / middle), wide) for one in (ends.low, ends.high))
    return exp(-below), exp(above), ends.coverage


def measured_ends(width: float, coverage: float) -> tuple[float, float, float]:
    """Return an interval relative to its middle, of this log-space half-width at 80 %."""
    wide = width * width_at(coverage)
    return exp(-wide), exp(wide), coverage


def narrower(one: tuple[float, float, float], other: tuple[float, float, float]) -> tuple[float, float, float]:
    """Return what two intervals relative to a time have in common, with the coverage of the other."""
    return max(one[0], other[0]), min(one[1], other[1]), one[2]


def spread(times: Times | None, ends: tuple[float, float, float]) -> ServedTime | None:
    """Return times, seconds, with the interval of their mean relative to it; None for none."""
    if times is None:
        return None
    p50, p90, p99 = (None if np.isnan(one) else 1e3 * one for one in times[1:4])
    mean, (low, high, coverage) = 1e3 * times.mean, ends
    return ServedTime(mean, p50, p90, p99, Interval(mean * low, mean * high, coverage))


def whole(times: Times | None, ttft: ServedTime | None, tpot: ServedTime | None, later: float) -> ServedTime | None:
    """Return the time of a request; its first token and the others deviate together."""
    if times is None or ttft is None:
        return None
    low, high, mean = ttft.interval.low, ttft.interval.high, ttft.mean
    if tpot is not None:
        low, high, mean = low + later * tpot.interval.low, high + later * tpot.interval.high, mean + later * tpot.mean
    return spread(times, (low / mean, high / mean, ttft.interval.coverage))
