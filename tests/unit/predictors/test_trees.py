"""Boosted trees that `auto` fits to the residuals of the physics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from app.predictors.auto.operators.learning.fitting import CLEAR
from app.predictors.trees.boosted import Growth, Trees, boosted
from app.predictors.trees.growing import STEPS


def test_trees_fit_a_function_deterministically() -> None:
    features = np.random.default_rng(0).normal(size=(4, 4000)).astype(np.float32)
    target = np.where(features[0] > 0.3, 1.0, -1.0) + 0.5 * (features[1] > 0) - features[2]
    trees = boosted(features, target, np.ones(4000), Growth(150))
    assert np.abs(trees.sum(features) - target).mean() < 0.1
    again = boosted(features, target, np.ones(4000), Growth(150))
    np.testing.assert_array_equal(trees.value, again.value)


@pytest.mark.parametrize("steps", [STEPS, STEPS // 9])
def test_a_state_holds_trees_exactly_and_those_of_earlier_artefacts_are_read(steps: int) -> None:
    features = np.random.default_rng(0).normal(size=(4, 2000)).astype(np.float32)
    trees = boosted(features, features[0] * features[1], np.ones(2000), Growth(60, steps=steps))
    stored = Trees.from_state(trees.state())
    np.testing.assert_array_equal(stored.threshold, trees.threshold)
    np.testing.assert_array_equal(stored.sum(features), trees.sum(features))
    old = {"feature": trees.feature, "threshold": trees.threshold, "value": trees.value.astype(np.float16)}
    np.testing.assert_array_equal(Trees.from_state(old).sum(features), trees.sum(features))
    none = boosted(features, np.zeros(2000), np.ones(2000), Growth(2))
    np.testing.assert_array_equal(Trees.from_state(none.state()).sum(features), 0.0)


def test_leaves_are_few_steps_and_later_trees_correct_their_rounding() -> None:
    features = np.random.default_rng(0).normal(size=(4, 4000)).astype(np.float32)
    trees = boosted(features, np.sin(features[0]) + features[1], np.ones(4000), Growth(300, steps=STEPS // 9))
    assert all(len(np.unique(leaves)) <= 2 * STEPS // 9 + 1 for leaves in trees.value)
    assert np.abs(trees.sum(features) - np.sin(features[0]) - features[1]).mean() < 0.05


def test_trees_interpolate_between_the_values_that_they_learned() -> None:
    heads = np.log2([1, 2, 4, 8, 32, 64, 128]).astype(np.float32)  # few values; 16 is not among them
    many = np.linspace(0.0, 7.0, 200, dtype=np.float32)
    for values, between, low, high in ((heads, 4.0, 3.0, 5.0), (np.delete(many, range(90, 110)), 3.5, 3.13, 3.87)):
        column = np.repeat(values, 20)
        target, asked, mass = column.astype(np.float64), np.array([[between]], np.float32), np.ones(len(column))
        growths = [Growth(400, features=1.0, seed=seed) for seed in range(8)]
        place = np.mean([boosted(column[None], target, mass, growth).sum(asked) for growth in growths])
        assert low + 0.1 * (high - low) < place < high - 0.1 * (high - low)


def test_the_last_trees_follow_the_majority_of_bimodal_rows() -> None:
    features = np.random.default_rng(0).normal(size=(1, 4000)).astype(np.float32)
    target = np.where(np.arange(4000) % 10 < 7, 0.0, 0.08)

    def middle(settles: float) -> float:
        growth = Growth(400, features=1.0, clear=CLEAR, settles=settles)
        return float(np.median(boosted(features, target, np.ones(4000), growth).sum(features)))

    assert middle(1.0) > 0.02
    assert middle(0.1) < 0.01


def test_the_huber_threshold_falls_in_the_second_half() -> None:
    clears = Growth(100, clear=CLEAR, settles=0.1).clears
    assert (clears[:51] == CLEAR).all() and (np.diff(clears[50:]) < 0.0).all() and clears[-1] < 0.11 * CLEAR
    assert (Growth(100, settles=0.1).clears == np.inf).all()


def test_the_learning_rate_rises_about_its_mean() -> None:
    growth = Growth(101, rate=0.2, rises=0.7)
    assert growth.rates[[0, 50, 100]].tolist() == pytest.approx([0.06, 0.2, 0.34])
    assert (Growth(50, rate=0.2).rates == 0.2).all()
    features = np.random.default_rng(0).normal(size=(3, 2000)).astype(np.float32)
    target = features[0] * features[1]
    rising, level = (boosted(features, target, np.ones(2000), Growth(40, rises=rises)) for rises in (0.7, 0.0))
    part = np.abs(rising.value).max(axis=1) / np.abs(level.value).max(axis=1)
    assert part[0] == pytest.approx(0.3)  # the same tree, in smaller steps
    assert part[-5:].mean() > 1.0


def test_the_relative_loss_prefers_the_shorter_of_two_times() -> None:
    features = np.random.default_rng(0).normal(size=(1, 4000)).astype(np.float32)
    target = np.where(np.arange(4000) % 20 < 9, 0.0, 0.5)

    def middle(*, relative: bool) -> float:
        growth = Growth(400, features=1.0, clear=CLEAR, settles=0.1, relative=relative)
        return float(np.median(boosted(features, target, np.ones(4000), growth).sum(features)))

    assert middle(relative=False) > 0.45
    assert middle(relative=True) < 0.05


def test_sample_weights_equal_repeated_rows() -> None:
    features = np.zeros((1, 400), dtype=np.float32)
    features[0, :200] = 1.0
    target, weight = np.tile([1.0, -1.0], 200), np.tile([3.0, 1.0], 200)

    def grown(size: float, clear: float) -> Any:
        growth = Growth(200, rows=1.0, features=1.0, clear=clear)
        return boosted(features, size * target, weight, growth).sum(features) / size

    for size, clear in ((1.0, np.inf), (CLEAR / 2.0, CLEAR)):
        np.testing.assert_allclose(grown(size, clear), 0.5, atol=0.02)
    # Of far rows each pulls alike, so that three hold one at a third of what is clear.
    np.testing.assert_allclose(grown(1.0, CLEAR), 1.0 - CLEAR / 3.0, atol=0.02)


def test_trees_with_a_first_feature_do_not_change_rows_left_of_it() -> None:
    draw = np.random.default_rng(0)
    features = draw.normal(size=(3, 2000)).astype(np.float32)
    features[2] = draw.random(2000) < 0.1
    target = np.where(features[2] > 0, np.sign(features[0]), 0.0).astype(np.float64)
    found = boosted(features, target, np.ones(2000), Growth(100, first=2)).sum(features)
    assert not found[features[2] == 0].any()
    assert np.abs(found - target)[features[2] > 0].mean() < 0.05


def test_equal_columns_are_summed_once() -> None:
    """Columns that split rows alike, and constants, change nothing; a first feature may be one of them."""
    draw = np.random.default_rng(0)
    two = draw.normal(size=(2, 2000)).astype(np.float32)
    two[1] = draw.random(2000) < 0.5
    many = np.stack(
        [two[0], np.full(2000, 7.0, np.float32), two[1], 3.0 * two[0], two[1] - 5.0, np.zeros(2000, np.float32)]
    )
    target = np.where(two[1] > 0, np.sign(two[0]), 0.0).astype(np.float64)
    for of_two, of_many in ((-1, -1), (1, 4)):
        few = boosted(two, target, np.ones(2000), Growth(50, rows=1.0, features=1.0, first=of_two))
        same = boosted(many, target, np.ones(2000), Growth(50, rows=1.0, features=1.0, first=of_many))
        np.testing.assert_allclose(same.sum(many), few.sum(two), atol=1e-6)
        assert set(np.unique(same.feature)) <= {0, 1, 2}
