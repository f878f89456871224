"""Folds that hold out one GPU share the models of all others."""

from __future__ import annotations

import numpy as np

from app.predictors.auto.operators.models.per_operator import Model
from app.predictors.auto.predictor import Auto
from app.predictors.fitted_once import fitted_once
from tests.unit.learned import GPUS, SEEN, SEEN_THREE, SEEN_TOO, UNSEEN, runs

ROWS = 420  # enough for a model of one GPU


def model_of_seen(*on: int, seed: int = 0) -> Model:
    """The model of one GPU that was trained with others."""
    cells = Auto().fit_operators([runs("softmax", "bh", ROWS, on, seed)], GPUS).operators_.cells
    return cells["softmax", "fp32"].own[GPUS.ids[SEEN]]


def test_a_gpu_is_fitted_once_while_others_are_held_out() -> None:
    alone = model_of_seen(SEEN, SEEN_TOO, UNSEEN)
    with fitted_once():
        first = model_of_seen(SEEN, SEEN_TOO, SEEN_THREE)
        second = model_of_seen(SEEN, SEEN_TOO, UNSEEN)
    assert first.trees is second.trees
    assert first.trees is not alone.trees
    assert all(np.array_equal(one, other) for one, other in zip(second.trees, alone.trees, strict=True))
    assert np.array_equal(second.factors, alone.factors)


def test_other_rows_are_fitted_anew_and_nothing_is_kept_afterwards() -> None:
    with fitted_once():
        first, other = model_of_seen(SEEN), model_of_seen(SEEN, seed=1)
    assert not np.array_equal(first.trees.value, other.trees.value)
    with fitted_once():
        assert model_of_seen(SEEN).trees is not first.trees
