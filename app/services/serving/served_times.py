"""Times of a served load with their intervals, from those of its steps and from measured loads."""

from __future__ import annotations

import numpy as np

from app.bands.band import Band, sum_correlated
from app.services.serving.figures import Times
from app.wire.prediction_form import Interval
from app.wire.serving_form import ServedTime


def milliseconds(seconds: float) -> float | None:
    """Return milliseconds, or None for no time."""
    return seconds * 1e3 if np.isfinite(seconds) and seconds > 0.0 else None


def served_time(times: Times | None, band: Band[float], coverage: float) -> ServedTime | None:
    """Return times, seconds, with the interval of their mean; None for none."""
    if times is None:
        return None
    p50, p90, p99 = (None if np.isnan(percentile) else 1e3 * percentile for percentile in times[1:4])
    mean = 1e3 * times.mean
    return ServedTime(mean, p50, p90, p99, Interval.of(mean, band, coverage))


def whole_time(
    times: Times | None, ttft: ServedTime | None, tpot: ServedTime | None, later: float
) -> ServedTime | None:
    """Return the time of a request with `later` tokens after its first, which deviate together with it."""
    if times is None or ttft is None:
        return None
    parts = [(ttft.mean, ttft.interval.band(ttft.mean))]
    if tpot is not None:
        parts.append((later * tpot.mean, tpot.interval.band(tpot.mean)))
    return served_time(times, sum_correlated(parts), ttft.interval.coverage)
