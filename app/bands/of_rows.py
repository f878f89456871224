"""Band of a step from the intervals of its rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from app.bands.band import Band
from app.bands.group_widths import network_widths
from app.runtime.compiled import compiled
from app.tables.arrays import Floats, Ints
from app.tables.predictions import Predictions


class _Rows(NamedTuple):
    """Rows of a step on g GPUs, and the u predictions they refer to.

    rows_s    float64 [n, g], seconds of each row in the step
    of        int [n, g], prediction of each row on each GPU
    group     int [n], interval group of each row
    relative  float64 [u, 4], per prediction and relative to its time: lower deviation (negative), upper deviation,
              log-space width, hardware limit
    """

    rows_s: Floats
    of: Ints
    group: Ints
    relative: Floats


def band_of_rows(rows_s: Floats, answer: Predictions, of: Ints, group: Ints) -> Band[Floats]:
    """Return the band of a step on g GPUs, [g].

    rows_s  float64 [n, g], seconds of each row in the step
    answer  predictions of u distinct rows, with intervals at COVERAGE
    of      int [n, g], the prediction of each row of the step on each GPU
    group   int [n], interval group of each row

    Errors within a group are fully correlated (a GPU that is slow at one product is slow at the next), so deviations
    add up linearly there; groups are independent, so theirs add up in squares, as does the error that all rows share
    (app.bands.group_widths), averaged over time. The step deviates by its rows' relative deviation: waits (for the
    host, or another stage) are known no better. The lower end is at least the hardware limit.
    """
    known, shared = answer.latency_s > 0, network_widths(answer.group)
    least = np.where(known, answer.latency_s, 1.0)
    below, above = answer.low_s - answer.latency_s, answer.high_s - answer.latency_s
    relative = np.stack([below / least, above / least, shared, np.where(known, answer.limit_s / least, 1.0)], axis=1)
    by_group = np.zeros((2, int(group.max(initial=0)) + 1, of.shape[1]))
    total = np.zeros((3, of.shape[1]))
    _add_up(_Rows(np.ascontiguousarray(rows_s), np.ascontiguousarray(of), group, relative), by_group, total)
    # A cumulative sum has a fixed order: np.sum's depends on the number of GPUs.
    squares = np.cumsum(by_group**2, axis=1)[:, -1]
    whole, wide, limit = total
    whole = np.maximum(whole, np.finfo(np.float64).tiny)
    below, above = (
        np.sqrt(square / whole**2 + np.expm1(sign * wide / whole) ** 2)
        for square, sign in zip(squares, (-1.0, 1.0), strict=True)
    )
    lowest = np.maximum(1.0 - np.minimum(below, 1.0), np.minimum(limit / whole, 1.0))
    return Band.of(np.ones_like(whole), lowest, 1.0 + above)


@compiled
def _add_up(rows: _Rows, by_group: Floats, total: Floats) -> None:
    """Add the rows' deviations to `by_group` [2, groups, g]; their seconds, widths and limits to `total` [3, g].

    Rows are added in order, so that a GPU's sums do not depend on the other GPUs.
    """
    for k in range(rows.rows_s.shape[0]):
        group = rows.group[k]
        for q in range(rows.rows_s.shape[1]):
            seconds, row = rows.rows_s[k, q], rows.of[k, q]
            by_group[0, group, q] += seconds * rows.relative[row, 0]
            by_group[1, group, q] += seconds * rows.relative[row, 1]
            total[0, q] += seconds
            total[1, q] += seconds * rows.relative[row, 2]
            total[2, q] += seconds * rows.relative[row, 3]
