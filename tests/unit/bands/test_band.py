"""Bands by hand, and that nothing outside of app/bands widens an interval."""

import ast
from collections.abc import Iterator
from math import exp, hypot, log, sqrt

import numpy as np
import pytest
from scipy.stats import norm

from app.bands.band import (
    Band,
    are_tied,
    ends_of_sum,
    probability_less,
    probability_of_order,
    probability_within,
    quantile,
    sum_correlated,
    width_at,
)
from app.config import CHECKOUT

COVERAGES = (0.1, 0.3, 0.5, 0.8, 0.9, 0.95)
# Names of an interval's ends, and what widens them.
ENDS = {"low", "high", "low_s", "high_s", "low_ms", "high_ms"}
WIDENS = {"exp", "expm1", "hypot", "width_at", "normal_quantile", "inv_cdf"}
# Ends of other things than intervals: ranges of training samples and of suites, and interpolation between batch sizes.
RANGES = ("predictors/auto", "predictors/trees", "measure", "serving/engine.py")


def figure(middle: float, low: float, high: float) -> tuple[float, Band[float]]:
    return middle, Band.of(middle, low, high)


@pytest.mark.parametrize("coverage", COVERAGES)
def test_widths_are_proportional_to_the_normal_quantile(coverage: float) -> None:
    low, high = Band(0.2, 0.5).ends(3.0, coverage)
    scale = norm.ppf(0.5 + coverage / 2.0) / norm.ppf(0.9)
    assert (log(3.0 / low), log(high / 3.0)) == pytest.approx((0.2 * scale, 0.5 * scale))
    assert width_at(coverage) == pytest.approx(scale)


@pytest.mark.parametrize("coverage", COVERAGES)
def test_a_band_is_read_from_its_ends_at_any_coverage(coverage: float) -> None:
    band = Band.of(3.0, *Band(0.2, 0.5).ends(3.0, coverage), coverage)
    assert (band.below, band.above) == pytest.approx((0.2, 0.5))


def test_independent_factors_widen_in_quadrature() -> None:
    band = Band(0.3, 0.4).widened(Band.symmetric(0.4))
    assert (band.below, band.above) == pytest.approx((0.5, hypot(0.4, 0.4)))


def test_the_ends_of_correlated_figures_add_up() -> None:
    band = sum_correlated([(2.0, Band.symmetric(log(2.0))), (4.0, Band(0.0, log(1.5)))])
    assert band.ends(6.0, 0.8) == pytest.approx((1.0 + 4.0, 4.0 + 6.0))


def test_deviations_of_independent_figures_add_up_in_squares() -> None:
    ends = ends_of_sum(np.array([10.0, 10.0]), np.array([7.0, 6.0]), np.array([16.0, 18.0]))
    assert ends == pytest.approx((15.0, 30.0))


def test_the_inverse_of_a_figure_deviates_the_other_way() -> None:
    assert Band(0.1, 0.5).inverse() == Band(0.5, 0.1)


def test_the_quantile_of_a_figure_is_kept_with_its_probability() -> None:
    band = Band(0.2, 0.5)
    assert quantile(3.0, band, 0.9) == pytest.approx(3.0 * exp(0.5))
    assert quantile(3.0, band, 0.1) == pytest.approx(3.0 * exp(-0.2))
    assert probability_within(3.0, band, 3.0 * exp(0.5)) == pytest.approx(0.9)


def test_equal_times_have_a_probability_of_one_half() -> None:
    assert probability_of_order(figure(1.0, 0.5, 2.0), figure(1.0, 0.9, 1.1)) == pytest.approx(0.5)


def test_the_facing_half_intervals_set_the_probability() -> None:
    # ln 2 apart; A may be a tenth longer, B a fifth shorter at 80 %, so z = 1.2816.
    a, b = figure(1.0, 0.1, 1.1), figure(2.0, 1.6, 9.0)
    z = norm.ppf(0.9)
    by_hand = norm.cdf(log(2.0) / (sqrt(log(1.1) ** 2 + log(2.0 / 1.6) ** 2) / z))
    assert probability_of_order(a, b) == pytest.approx(by_hand)
    assert probability_of_order(b, a) == pytest.approx(1.0 - by_hand)


def test_errors_in_common_do_not_blur_the_order() -> None:
    a, b = figure(1.0, 0.8, 1.25), figure(1.2, 0.96, 1.5)
    alone, known = probability_of_order(a, b), probability_of_order(a, b, common=0.9 * (log(1.25) / norm.ppf(0.9)) ** 2)
    assert 0.7 < alone < 0.8
    assert 0.99 < known < 1.0


def test_exact_figures_are_tied_only_if_equal() -> None:
    exact = np.array([1.0, 2.0, 2.0])
    tied = are_tied(exact, Band.of(exact, exact, exact), 0.8)
    assert tied.tolist() == [[False, False, False], [False, False, True], [False, True, False]]


@pytest.mark.parametrize("coverage", [5e-324, 0.8, 1.0 - 2.0**-53])
def test_any_coverage_gives_probabilities(coverage: float) -> None:
    middle, low, high = np.array([0.0, 1.0, 1e-300]), np.array([0.0, 0.5, 0.0]), np.array([0.0, 2.0, 1e300])
    probability = probability_less(middle, Band.of(middle, low, high, coverage))
    assert np.all((probability >= 0) & (probability <= 1)) and np.allclose(probability + probability.T, 1.0)


def places() -> Iterator[tuple[str, ast.AST]]:
    """Every simple statement of the application outside of app/bands, with its place."""
    app = CHECKOUT / "app"
    for path in sorted(app.rglob("*.py")):
        name = path.relative_to(app).as_posix()
        if name.startswith(("bands/", *RANGES)):
            continue
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.stmt) and not hasattr(node, "body"):
                yield f"{name}:{node.lineno}", node


def names_in(node: ast.AST) -> set[str]:
    each = (getattr(part, "id", getattr(part, "attr", getattr(part, "arg", None))) for part in ast.walk(node))
    return {name for name in each if name is not None}


def test_nothing_else_widens_an_interval() -> None:
    """No normal quantile of a coverage, and no exponential in the making of an interval's ends."""
    wrong = []
    for place, node in places():
        names = names_in(node)
        imported = isinstance(node, ast.ImportFrom) and {alias.name for alias in node.names} & {
            "width_at",
            "normal_quantile",
        }
        if imported or (names & ENDS and names & WIDENS):
            wrong.append(place)
    assert not wrong
