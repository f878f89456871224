"""Finished predictions from a predictor's estimates: clamped to the hardware limit, with intervals."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.bands.conformal import ends_of
from app.bands.groups import NO_EVIDENCE
from app.predictors.roofline import Limit
from app.runtime.compiled import compiled
from app.tables.arrays import Floats, Ints
from app.tables.predictions import EXTRAPOLATED, Estimate, Predictions


class _Estimates(NamedTuple):
    """Arrays of an Estimate and of its Limit, [n] each; `latency_s` is NaN if unsupported."""

    latency_s: Floats
    bound: Ints
    support: Ints
    group: Ints
    stretch: Floats
    limit_s: Floats
    limit_bound: Ints


def finished(estimate: Estimate, limit: Limit, log_offsets: Floats) -> Predictions:
    """Return the predictions; rows without an estimate get the hardware limit.

    log_offsets  float64 [2, groups], lower and upper end of each group's interval relative to the time, in log space
    """
    n = len(estimate.latency_s)
    stretch = np.ones(n) if estimate.stretch is None else estimate.stretch
    times, codes, answered = np.empty((4, n)), np.empty((3, n), dtype=np.intp), np.empty(n, dtype=np.bool_)
    estimates = _Estimates(
        estimate.latency_s, estimate.bound, estimate.support, estimate.group, stretch, limit.latency_s, limit.bound
    )
    _fill(estimates, log_offsets, times, codes, answered)
    latency, low, high, limit_s = times
    bound, support, group = codes
    return Predictions(latency, low, high, limit_s, bound, support, group, answered)


@compiled
def _fill(estimates: _Estimates, log_offsets: Floats, times: Floats, codes: Ints, answered: NDArray[np.bool_]) -> None:
    """Fill `times` [4, n], latency, interval and limit; `codes` [3, n], bound, support and group; `answered` [n]."""
    for q in range(len(estimates.latency_s)):
        estimate, limit, stretch = estimates.latency_s[q], estimates.limit_s[q], estimates.stretch[q]
        answered[q] = np.isfinite(estimate)
        over = answered[q] and estimate >= limit
        latency = estimate if over else limit
        codes[0, q] = estimates.bound[q] if over else estimates.limit_bound[q]
        codes[1, q] = estimates.support[q] if answered[q] else EXTRAPOLATED
        codes[2, q] = estimates.group[q] if answered[q] else NO_EVIDENCE
        times[0, q] = latency
        low, high = log_offsets[0, codes[2, q]], log_offsets[1, codes[2, q]]
        times[1, q], times[2, q] = ends_of(latency, low, high, stretch, limit)
        times[3, q] = limit
