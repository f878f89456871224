"""The error model of whole answers: components from drawn cells, variances of known and new cells, coverage."""

from __future__ import annotations

import numpy as np
import pytest

from app.tables.arrays import Floats, Ints
from evaluation.first_contact.error_model import Cells, Components, Held, estimate, second_moments, shared

# Of two components: the GPU and the model.
TRUE = Components(np.array([0.09, 0.01]), 0.0025)
PRIOR = Components(np.array([0.04, 0.04]), 0.0025)


def drawn(gpus: int, models: int, seed: int) -> Cells:
    """Cells of every model on every GPU, of 8 rows each, with errors of the true components."""
    rng = np.random.default_rng(seed)
    levels = np.array([(gpu, model) for gpu in range(gpus) for model in range(models)])
    effects = [rng.normal(0.0, np.sqrt(v), n) for v, n in zip(TRUE.v, (gpus, models), strict=True)]
    noise = rng.normal(0.0, np.sqrt(TRUE.e2 / 8.0), len(levels))
    return cells(levels, effects[0][levels[:, 0]] + effects[1][levels[:, 1]] + noise)


def cells(levels: Ints, ybar: Floats) -> Cells:
    return Cells(levels, ybar, np.full(len(ybar), 8.0), ["s"] * len(ybar), [()] * len(ybar))


def test_components_are_estimated_from_cells() -> None:
    found = estimate(drawn(30, 12, 1), PRIOR)
    assert found.v[0] == pytest.approx(TRUE.v[0], rel=0.5)
    assert found.v[1] < PRIOR.v[1]
    assert estimate(drawn(2, 1, 1), PRIOR) is PRIOR, "two cells tell nothing"


def test_cells_covary_by_what_they_share() -> None:
    levels = np.array([[0, 0], [0, 1], [1, 1], [2, 2]])
    covariance = shared(levels, levels, TRUE.v)
    assert covariance[0].tolist() == pytest.approx([0.10, 0.09, 0.0, 0.0])
    assert covariance[1, 2] == pytest.approx(0.01)


def test_what_was_measured_narrows_its_neighbours_and_a_bias_widens_them() -> None:
    levels = np.array([[0, k] for k in range(20)])
    right, biased = cells(levels, np.zeros(20)), cells(levels, np.full(20, -0.5))
    asked = cells(np.array([[0, 99], [1, 99]]), np.zeros(2))
    alone = second_moments(asked, None, TRUE)
    same_gpu, other_gpu = second_moments(asked, right, TRUE)
    assert same_gpu < 0.3 * alone[0]
    assert other_gpu == pytest.approx(alone[1])
    assert second_moments(asked, biased, TRUE)[0] > 0.2, "nothing is shifted, so the width has to hold the bias"


def test_intervals_of_the_true_components_hold_what_they_say() -> None:
    known, fresh = drawn(30, 12, 2), drawn(30, 12, 3)
    fresh = fresh._replace(levels=fresh.levels + 1000)
    half = 1.2816 * np.sqrt(second_moments(fresh, known, TRUE))
    assert 65.0 < Held.of(fresh.ybar, half, half, 30).held < 95.0


def test_the_score_is_the_width_and_ten_times_what_lies_outside() -> None:
    one = np.array([0.0, 1.5])
    scored = Held.of(one, np.ones(2), np.ones(2), 2)
    assert (scored.held, scored.half_width) == (50.0, 1.0)
    assert scored.score == pytest.approx((2.0 + 2.0 + 10.0 * 0.5) / 2.0)
