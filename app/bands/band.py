"""Width of an interval: how to make, widen, combine and scale one, what is probable by it, and those set by hand.

A band holds the half-widths of an interval in log space at COVERAGE, below and above its middle. At any other coverage
both are in proportion to the normal quantile, so an interval grows with its coverage everywhere, and by one rule. What
was measured as quantiles (app.bands.conformal) has ends per coverage instead. Nothing outside this package makes,
widens or combines one.

Probabilities are of a log-normal figure, as wide on each side of the estimate as its band. Of two figures only the
halves that face each other matter: P(A < B) = Phi(ln(b / a) / s), s^2 = s_A^2 + s_B^2 - 2 c, where c is the variance
that their errors have in common (app.bands.error_model).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import erfc, exp, inf, log, pi, sqrt
from statistics import NormalDist
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from app.bands.coverage import COVERAGE
from app.coefficients import Coefficients
from app.runtime.compiled import compiled
from app.tables.arrays import Bools, Floats, Ints
from app.tables.predictions import Predictions

# A coverage next to 1 rounds to it, which has no quantile; one next to 0 has a quantile of 0.
_LEAST_TAIL, _LEAST_WIDTH = 2.0**-53, 1e-12
# Clip of a half-width.
_WIDEST = Coefficients("bands").number("widest")
# Half-width of a condition's effect over the effect, both in log space.
_CONDITION = Coefficients("bands").number("condition_spread")
_TINY = float(np.finfo(np.float64).tiny)
# The least spread of a difference: closer figures count as equal.
_LEAST_SPREAD = 1e-12

Width = TypeVar("Width", float, Floats)


def normal_quantile(probability: float) -> float:
    """Return the standard normal quantile; probabilities next to 0 and 1 are clipped to those with a finite one."""
    return NormalDist().inv_cdf(min(max(probability, _LEAST_TAIL), 1.0 - _LEAST_TAIL))


# Half-width at COVERAGE of a normal error with a standard deviation of 1.
DEVIATIONS = normal_quantile(0.5 + COVERAGE / 2.0)


def width_at(coverage: float) -> float:
    """Return the width of an interval at `coverage` over that at COVERAGE."""
    return normal_quantile(0.5 + coverage / 2.0) / DEVIATIONS


@dataclass(frozen=True, slots=True)
class Band(Generic[Width]):
    """Half-widths of an interval in log space at COVERAGE: numbers, or float64 arrays of one shape.

    below, above  ln(middle / low) and ln(high / middle), at least 0
    """

    below: Width
    above: Width

    @classmethod
    def of(cls, middle: Width, low: Width, high: Width, coverage: float = COVERAGE) -> Band[Width]:
        """Return the band of an interval from `low` to `high` at `coverage`."""
        scale = max(width_at(coverage), _LEAST_WIDTH)
        return cls(_log_ratio(middle, low) / scale, _log_ratio(high, middle) / scale)

    @classmethod
    def symmetric(cls, half_width: Width) -> Band[Width]:
        """Return the band of this half-width on both sides."""
        return cls(half_width, half_width)

    def ends(self, middle: Width, coverage: float) -> tuple[Width, Width]:
        """Return the lower and upper end of the interval around `middle` at `coverage`."""
        scale = width_at(coverage)
        return middle * np.exp(-scale * self.below), middle * np.exp(scale * self.above)

    def widened(self, other: Band[Width] | Band[float]) -> Band[Width]:
        """Return the band of the product of two figures whose errors are independent."""
        return Band(np.hypot(self.below, other.below), np.hypot(self.above, other.above))

    def after(self, factor: Width) -> Band[Width]:
        """Return the band of a figure that a condition, as a power cap or another host, has multiplied by `factor`."""
        return self.widened(Band.symmetric(_CONDITION * np.abs(np.log(factor))))

    def times(self, part: Width | float) -> Band[Width]:
        """Return the band with this part of its half-widths."""
        return Band(part * self.below, part * self.above)

    def amplified(self, by: Band[float]) -> Band[Width]:
        """Return the band with these parts of its half-widths, each of its side."""
        return Band(by.below * self.below, by.above * self.above)

    def wider(self, other: Band[Width]) -> Band[Width]:
        """Return what two intervals around one middle cover together."""
        return Band(np.maximum(self.below, other.below), np.maximum(self.above, other.above))

    def replaced(self: Band[Floats], where: Bools, other: Band[float] | Band[Floats]) -> Band[Floats]:
        """Return the band with another one where `where` is true."""
        return Band(np.where(where, other.below, self.below), np.where(where, other.above, self.above))

    def filled(self, shape: tuple[int, ...]) -> Band[Floats]:
        """Return the band in every place of arrays of this shape."""
        return Band(np.full(shape, self.below), np.full(shape, self.above))

    def inverse(self) -> Band[Width]:
        """Return the band of the inverse of the figure."""
        return Band(self.above, self.below)

    def deviations(self) -> Band[Width]:
        """Return the standard deviations in log space, below and above, of a figure with this band."""
        return Band(self.below / DEVIATIONS, self.above / DEVIATIONS)


def sum_correlated(parts: Sequence[tuple[Width, Band[Width]]]) -> Band[Width]:
    """Return the band of a sum of figures whose errors are fully correlated; each part is its middle and its band."""
    ends = [band.ends(middle, COVERAGE) for middle, band in parts]
    return Band.of(_sum([middle for middle, _ in parts]), *(_sum(list(side)) for side in zip(*ends, strict=True)))


def ends_of_sum(middle: Floats, low: Floats, high: Floats) -> tuple[float, float]:
    """Return the ends of the sum of independent figures from their own ends, float64 [n] each, at one coverage.

    Deviations add up in squares. For intervals whose widths are measured per coverage; others are bands.
    """
    below, above = (float(np.sqrt(((end - middle) ** 2).sum())) for end in (low, high))
    total = float(middle.sum())
    return total - below, total + above


def _log_ratio(high: Width, low: Width) -> Width:
    """Return ln(high / low), clipped to 0 and _WIDEST."""
    ratio = np.log(np.maximum(high, _TINY)) - np.log(np.maximum(low, _TINY))
    within: Width = np.clip(ratio, 0.0, _WIDEST)
    return within


def _sum(figures: Sequence[Width]) -> Width:
    """Return the sum of numbers or arrays, in order."""
    total = figures[0]
    for figure in figures[1:]:
        total = total + figure
    return total


class _Rows(NamedTuple):
    """Rows of a step on g GPUs, and the u predictions they refer to.

    rows_s    float64 [n, g], seconds of each row in the step
    of        int [n, g], prediction of each row on each GPU
    group     int [n], interval group of each row
    relative  float64 [u, 3], per prediction and relative to its time: lower deviation (negative), upper deviation,
              hardware limit
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
    add up linearly there; groups are independent, so theirs add up in squares. The step deviates by its rows' relative
    deviation: waits (for the host, or another stage) are known no better. The lower end is at least the hardware limit.
    """
    known = answer.latency_s > 0
    least = np.where(known, answer.latency_s, 1.0)
    below, above = answer.low_s - answer.latency_s, answer.high_s - answer.latency_s
    relative = np.stack([below / least, above / least, np.where(known, answer.limit_s / least, 1.0)], axis=1)
    by_group = np.zeros((2, int(group.max(initial=0)) + 1, of.shape[1]))
    total = np.zeros((2, of.shape[1]))
    _add_up(_Rows(np.ascontiguousarray(rows_s), np.ascontiguousarray(of), group, relative), by_group, total)
    # A cumulative sum has a fixed order: np.sum's depends on the number of GPUs.
    below, above = np.sqrt(np.cumsum(by_group**2, axis=1)[:, -1])
    whole, limit = np.maximum(total[0], np.finfo(np.float64).tiny), total[1]
    lowest = np.maximum(1.0 - np.minimum(below / whole, 1.0), np.minimum(limit / whole, 1.0))
    return Band.of(np.ones_like(whole), lowest, 1.0 + above / whole)


@compiled
def _add_up(rows: _Rows, by_group: Floats, total: Floats) -> None:
    """Add the rows' deviations to `by_group` [2, groups, g]; their seconds and limits to `total` [2, g].

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


def probability_within(middle: float, band: Band[float], allowed: float) -> float:
    """Return the probability that the true figure is at most `allowed`."""
    if allowed <= 0 or middle <= 0:
        return 1.0 if middle <= 0 <= allowed else 0.0
    if allowed == inf:
        return 1.0
    gap = log(allowed) - log(middle)
    deviation = band.deviations().above if gap >= 0 else band.deviations().below
    if deviation == 0.0:
        return 1.0 if gap >= 0 else 0.0
    return NormalDist().cdf(gap / deviation)


def corrected(probability: float, estimate: float, true: float) -> float:
    """Return what to require of an estimate for a true `probability`, where one of `estimate` was `true`, or more."""
    lacking = max(normal_quantile(estimate) - normal_quantile(true), 0.0)
    return NormalDist().cdf(normal_quantile(probability) + lacking)


def quantile(middle: float, band: Band[float], probability: float) -> float:
    """Return the figure that is not exceeded with `probability`."""
    z = normal_quantile(probability)
    return middle * exp(z * (band.deviations().above if z >= 0 else band.deviations().below))


def mean_error(band: Band[Floats]) -> Floats:
    """Return the mean absolute error in log space of figures with these bands."""
    deviations = band.deviations()
    error: Floats = sqrt(2.0 / pi) * 0.5 * (deviations.below + deviations.above)
    return error


def limit_of_estimate(limit: float, deviation: float, probability: float) -> float:
    """Return the estimate whose true figure is at most `limit` with `probability`; `deviation` is in log space."""
    return limit * exp(-normal_quantile(probability) * deviation)


def standard_deviation(middle: float, band: Band[float]) -> float:
    """Return the standard deviation of a normal figure whose interval is as wide, in the unit of `middle`."""
    low, high = band.ends(middle, COVERAGE)
    return (high - low) / 2.0 / normal_quantile(0.5 + COVERAGE / 2.0)


def probability_less(middle: Floats, band: Band[Floats], common: float = 0.0) -> Floats:
    """Return the probability that figure i of n is less than figure j, float64 [n, n]; 0.5 on the diagonal.

    `common`: the variance in log space that the errors of all have in common.
    """
    known = np.log(np.maximum(middle, np.finfo(np.float64).tiny))
    down, up = band.deviations().below, band.deviations().above
    gap = known[None, :] - known[:, None]
    mine = np.where(gap >= 0, up[:, None], down[:, None])
    theirs = np.where(gap >= 0, down[None, :], up[None, :])
    alike = np.minimum(common, np.minimum(mine, theirs) ** 2)
    spread = np.sqrt(np.maximum(mine**2 + theirs**2 - 2.0 * alike, _LEAST_SPREAD**2))
    apart = gap / (spread * -sqrt(2.0))
    return np.array([0.5 * erfc(x) for x in apart.ravel().tolist()]).reshape(apart.shape)


def probability_of_order(
    first: tuple[float, Band[float]], second: tuple[float, Band[float]], common: float = 0.0
) -> float:
    """Return the probability that the first figure is less than the second; each is its estimate and its band."""
    middle = np.array([first[0], second[0]])
    below, above = np.array([[band.below, band.above] for _, band in (first, second)]).T
    return float(probability_less(middle, Band(below, above), common)[0, 1])


def are_tied(middle: Floats, band: Band[Floats], coverage: float, common: float = 0.0) -> Bools:
    """Return statistically tied pairs, bool [n, n]; a figure is not tied with itself.

    At a coverage of 80 % a pair is tied if neither order has a probability of 90 %.
    """
    probability = probability_less(middle, band, common)
    sure: Bools = np.maximum(probability, 1.0 - probability) >= 0.5 + 0.5 * coverage
    same: Bools = ~sure
    np.fill_diagonal(same, False)
    return same


_BANDS = Coefficients("bands")

# What has no error of its own.
EXACT = Band(0.0, 0.0)
# Waits for a host.
HOST_WAIT = Band.symmetric(_BANDS.number("host_wait"))
INPUT_COPY = Band.symmetric(_BANDS.number("input_copy"))
HOST_COLLECTIVE = Band.symmetric(_BANDS.number("host_collective"))
# A host that launches each operator is as fast as assumed, or slower; less so where it is known which one launches.
EAGER_HOST = Band(0.0, _BANDS.number("eager_host"))
EAGER_HOST_KNOWN = Band(0.0, _BANDS.number("eager_host_known"))


class Served(NamedTuple):
    """Bands of a served load: of the time per output token, and of the time to first token."""

    token: Band[float]
    first: Band[float]


# A load that was measured.
MEASURED_LOAD = Served(*(Band.symmetric(_BANDS.by_name("measured_load")[name]) for name in ("token", "first")))
