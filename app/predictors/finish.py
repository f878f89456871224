"""From a predictor's middle to a finished answer: kept over the hardware limit, with its interval."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from app.predictors.intervals.groups import NO_EVIDENCE
from app.predictors.roofline import Limit
from app.runtime.compiled import compiled
from app.tables.predictions import EXTRAPOLATED, Estimate, Predictions

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]


def finished(estimate: Estimate, limit: Limit, log_offsets: Floats) -> Predictions:
    """Rows without a middle get the limit; `log_offsets` float64 [2, groups] are low and high in log space."""
    n = len(estimate.latency_s)
    times, codes, answered = np.empty((4, n)), np.empty((3, n), dtype=np.intp), np.empty(n, dtype=np.bool_)
    stretch = np.ones(n) if estimate.stretch is None else estimate.stretch
    given = (estimate.latency_s, estimate.bound, estimate.support, estimate.group, stretch)
    _fill(given, (limit.latency_s, limit.bound), log_offsets, times, codes, answered)
    latency, low, high, limit_s = times
    bound, support, group = codes
    return Predictions(latency, low, high, limit_s, bound, support, group, answered)


@compiled
def _fill(
    given: tuple[Floats, Ints, Ints, Ints, Floats],
    least: tuple[Floats, Ints],
    log_offsets: Floats,
    times: Floats,
    codes: Ints,
    answered: NDArray[np.bool_],
) -> None:
    middle, bound, support, group, stretch = given
    limit_s, limit_bound = least
    for q in range(len(middle)):
        limit = limit_s[q]
        answered[q] = np.isfinite(middle[q])
        over = answered[q] and middle[q] >= limit
        latency = middle[q] if over else limit
        codes[0, q] = bound[q] if over else limit_bound[q]
        codes[1, q] = support[q] if answered[q] else EXTRAPOLATED
        codes[2, q] = group[q] if answered[q] else NO_EVIDENCE
        times[0, q] = latency
        times[1, q] = max(latency * np.exp(stretch[q] * log_offsets[0, codes[2, q]]), limit)
        times[2, q] = latency * np.exp(stretch[q] * log_offsets[1, codes[2, q]])
        times[3, q] = limit
