"""From the intervals of rows to that of a step."""

from __future__ import annotations

import numpy as np

from app.graphs.schedule import Schedule
from app.tables.workload import Floats, Ints


def step_interval(
    done: Schedule, latency_s: Floats, low_s: Floats, high_s: Floats, group: Ints, width: Floats
) -> tuple[Floats, Floats]:
    """Ends of the step's interval, seconds, float64 [g] each, from those of rows, [n, g], and groups of rows, int [n].

    Within a group errors are one (a GPU that is slow at one product is slow at the next), so there the ends add up as
    the middles do; groups err independently, so deviations add up in squares. So does what all rows share: `width` [n,
    g] in log space, averaged over the time. The step deviates in the proportion of its rows' time: where it waits (for
    the host, or for another stage) it is known no better.
    """
    least = np.where(latency_s > 0, latency_s, 1.0)
    whole = np.maximum(_sum(done.rows_s), np.finfo(np.float64).tiny)
    shared = _sum(done.rows_s * width) / whole
    below, above = (
        np.sqrt(
            _sum(_by_group(done.rows_s * (end - latency_s) / least, group) ** 2) / whole**2
            + np.expm1(sign * shared) ** 2
        )
        for end, sign in ((low_s, -1.0), (high_s, 1.0))
    )
    return done.step_s * (1.0 - np.minimum(below, 1.0)), done.step_s * (1.0 + above)


def _sum(rows: Floats) -> Floats:
    """Sum of rows [n, g], one after another: NumPy's own sum adds a GPU alone in another order than among others."""
    total: Floats = np.cumsum(rows, axis=0)[-1]
    return total


def _by_group(rows: Floats, group: Ints) -> Floats:
    """Sums of rows [n, g] within their groups, [groups, g], in the same order."""
    sums = np.zeros((int(group.max(initial=0)) + 1, rows.shape[1]))
    np.add.at(sums, group, rows)
    return sums
