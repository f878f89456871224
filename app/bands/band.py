"""Width of an interval: how to make, widen, combine and scale one, and those that are set by hand.

A band holds the half-widths of an interval in log space at COVERAGE, below and above its middle. At any other coverage
both are in proportion to the normal quantile, so an interval grows with its coverage everywhere, and by one rule. What
was measured as quantiles (app.bands.conformal) has ends per coverage instead. Nothing outside this package makes,
widens or combines one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from app.bands.coverage import COVERAGE
from app.coefficients import Coefficients
from app.tables.arrays import Bools, Floats

# A coverage next to 1 rounds to it, which has no quantile; one next to 0 has a quantile of 0.
_LEAST_TAIL, _LEAST_WIDTH = 2.0**-53, 1e-12
# Clip of a half-width.
_WIDEST = Coefficients("bands").number("widest")
_TINY = float(np.finfo(np.float64).tiny)

Width = TypeVar("Width", float, Floats)


def normal_quantile(probability: float) -> float:
    """Return the standard normal quantile; probabilities next to 0 and 1 are clipped to those with a finite one."""
    return NormalDist().inv_cdf(min(max(probability, _LEAST_TAIL), 1.0 - _LEAST_TAIL))


# Half-width at COVERAGE of a normal error with a standard deviation of 1.
_DEVIATIONS = normal_quantile(0.5 + COVERAGE / 2.0)


def width_at(coverage: float) -> float:
    """Return the width of an interval at `coverage` over that at COVERAGE."""
    return normal_quantile(0.5 + coverage / 2.0) / _DEVIATIONS


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

    def times(self, part: Width | float) -> Band[Width]:
        """Return the band with this part of its half-widths."""
        return Band(part * self.below, part * self.above)

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
        return Band(self.below / _DEVIATIONS, self.above / _DEVIATIONS)


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


_BANDS = Coefficients("bands")

# Waits for a host.
HOST_WAIT = Band.symmetric(_BANDS.number("host_wait"))
INPUT_COPY = Band.symmetric(_BANDS.number("input_copy"))
HOST_COLLECTIVE = Band.symmetric(_BANDS.number("host_collective"))
# A host that launches each operator is as fast as assumed, or slower; less so where its version says how fast.
EAGER_HOST = Band(0.0, _BANDS.number("eager_host"))
EAGER_HOST_OF_VERSION = Band(0.0, _BANDS.number("eager_host_of_version"))
# Margins of a load's limits before its own intervals are known, in standard deviations in log space.
LIMIT_MARGINS = _BANDS.by_name("limit_margins")


class Served(NamedTuple):
    """Bands of a served load: of the time per output token, and of the time to first token."""

    token: Band[float]
    first: Band[float]


# A load that was measured.
MEASURED_LOAD = Served(*(Band.symmetric(_BANDS.by_name("measured_load")[name]) for name in ("token", "first")))
