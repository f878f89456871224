"""Probabilities of a predicted figure: log-normal, as wide on each side of the estimate as its band.

Of two figures only the halves that face each other matter: P(A < B) = Phi(ln(b / a) / s), s^2 = s_A^2 + s_B^2 - 2 c,
where c is the variance that their errors have in common (app.bands.error_model).
"""

from __future__ import annotations

from math import erfc, exp, inf, log, pi, sqrt
from statistics import NormalDist

import numpy as np

from app.bands.band import Band, normal_quantile
from app.bands.coverage import COVERAGE
from app.tables.arrays import Bools, Floats

# The least spread: closer figures count as equal.
_LEAST = 1e-12


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
    spread = np.sqrt(np.maximum(mine**2 + theirs**2 - 2.0 * alike, _LEAST**2))
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
