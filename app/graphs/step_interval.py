"""From the intervals of rows to that of a step."""

from __future__ import annotations

import numpy as np

from app.graphs.schedule import Schedule
from app.runtime.compiled import compiled
from app.tables.predictions import Predictions
from app.tables.workload import Floats, Ints


def step_interval(done: Schedule, answer: Predictions, of: Ints, group: Ints, width: Floats) -> tuple[Floats, Floats]:
    """Ends of the step's interval, seconds, float64 [g] each, from `answer` to u rows.

    `of` int [n, g] is which of these each row of the step is on each GPU; `group` int [n]; `width` float64 [u].

    Within a group of rows errors are one (a GPU that is slow at one product is slow at the next), so there the ends add
    up as the middles do; groups err independently, so deviations add up in squares. So does what all rows share:
    `width` in log space, averaged over the time. The step deviates in the proportion of its rows' time: where it waits
    (for the host, or for another stage) it is known no better. It is not under what it takes at the hardware limit.
    """
    known = answer.latency_s > 0
    least = np.where(known, answer.latency_s, 1.0)
    below, above = answer.low_s - answer.latency_s, answer.high_s - answer.latency_s
    each = np.stack([below / least, above / least, width, np.where(known, answer.limit_s / least, 1.0)], axis=1)
    apart = np.zeros((2, int(group.max(initial=0)) + 1, of.shape[1]))
    shared = np.zeros((3, of.shape[1]))
    _add_up(np.ascontiguousarray(done.rows_s), np.ascontiguousarray(of), group, each, apart, shared)
    # One after another as well: NumPy's own sum adds a GPU alone in another order than among others.
    squares = np.cumsum(apart**2, axis=1)[:, -1]
    whole, wide, limit = shared
    whole = np.maximum(whole, np.finfo(np.float64).tiny)
    below, above = (
        np.sqrt(square / whole**2 + np.expm1(sign * wide / whole) ** 2)
        for square, sign in zip(squares, (-1.0, 1.0), strict=True)
    )
    least_share = np.maximum(1.0 - np.minimum(below, 1.0), np.minimum(limit / whole, 1.0))
    return done.step_s * least_share, done.step_s * (1.0 + above)


@compiled
def _add_up(rows_s: Floats, of: Ints, group: Ints, each: Floats, apart: Floats, shared: Floats) -> None:
    """Sums over rows, one after another, whatever else is asked: deviations of groups, and seconds, widths, limits."""
    for k in range(rows_s.shape[0]):
        line = group[k]
        for q in range(rows_s.shape[1]):
            seconds, row = rows_s[k, q], of[k, q]
            apart[0, line, q] += seconds * each[row, 0]
            apart[1, line, q] += seconds * each[row, 1]
            shared[0, q] += seconds
            shared[1, q] += seconds * each[row, 2]
            shared[2, q] += seconds * each[row, 3]
