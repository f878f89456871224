from __future__ import annotations

import numpy as np
import pytest

from app.predictors.trees.boosted import Trees, leaves_of
from app.predictors.trees.sums import BLOCK, DEPTH, LEAVES, halves_of, questions_of

DRAW = np.random.default_rng(0)
COLUMNS, TREES = 5, 7  # no multiple of the trees that are read together
EDGES = np.sort(DRAW.normal(size=(COLUMNS, 40)).astype(np.float32))


def some_trees() -> Trees:
    """Leaves of every exponent that a half has, the least ones too, and zeros."""
    feature = DRAW.integers(0, COLUMNS - 1, (TREES, DEPTH)).astype(np.int16)  # nothing asks the last
    threshold = EDGES[feature, DRAW.integers(0, EDGES.shape[1], (TREES, DEPTH))]
    value = DRAW.choice([-1.0, 0.0, 1.0], (TREES, LEAVES)) * 2.0 ** DRAW.uniform(-26, 3, (TREES, LEAVES))
    return Trees(feature, threshold, value.astype(np.float16))


@pytest.mark.parametrize("rows", [1, 3, 4, BLOCK, 2 * BLOCK + 1])
def test_tree_sums_are_equal_for_single_rows_and_blocks(rows: int) -> None:
    trees, features = some_trees(), DRAW.normal(size=(COLUMNS, rows)).astype(np.float32)
    features[0, ::2] = DRAW.choice(EDGES[0], len(features[0, ::2]))  # on a threshold is not beyond it
    features[1, 1::3], features[2, 2::5], features[3, ::7] = np.nan, np.inf, -np.inf
    leaf = leaves_of(features, trees)
    expected = trees.value.astype(np.float64)[np.arange(TREES), leaf].sum(axis=1)
    sums = trees.sum(features)
    np.testing.assert_allclose(sums, expected, rtol=1e-5, atol=1e-6)
    alone = [trees.sum(np.ascontiguousarray(features[:, row : row + 1]))[0] for row in range(rows)]
    assert sums.tolist() == alone


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("leaf", [2.0**-24, -(2.0**-24), 2.0**-15, -(2.0**-14), 1.5 * 2.0**-14, 0.0, -65504.0])
def test_leaves_are_summed_without_rounding(leaf: float, rows: int) -> None:
    one = some_trees()
    trees = Trees(one.feature[:1], one.threshold[:1], np.full((1, LEAVES), leaf, dtype=np.float16))
    assert (trees.sum(np.zeros((COLUMNS, rows), dtype=np.float32)) == leaf).all()


@pytest.mark.filterwarnings("ignore")
def test_leaves_are_rounded_to_the_nearest_half() -> None:
    steps = np.concatenate([np.arange(-128, 128), DRAW.integers(-128, 128, 640)]).astype(np.int8).reshape(-1, LEAVES)
    units = np.float32(2.0) ** DRAW.uniform(-33, 10, 2000).astype(np.float32)
    ties = np.float32(2.0) ** np.arange(-40, 12, dtype=np.float32)
    for unit in (*units, *ties, *(ties * 1.5), np.float32(0.0), np.float32(np.inf), np.float32(np.nan)):
        expected = (steps * unit).astype(np.float16)
        found = halves_of(steps, np.full(len(steps), unit))
        np.testing.assert_array_equal(found, expected)  # NaN equals NaN here
        assert (np.signbit(found) == np.signbit(expected))[~np.isnan(expected)].all()


def test_thresholds_are_distinct_and_ascend_within_each_feature() -> None:
    threshold = np.array([[0.5, -0.5, 0.0, -0.0, np.inf, -np.inf], [-0.5, -2.0, 1e-40, 0.5, 3.0, -1e-40]], np.float32)
    feature = np.array([[1, 1, 1, 1, 1, 1], [1, 0, 1, 1, 0, 1]], dtype=np.int16)
    found = questions_of(feature, threshold, 3)
    tiny = np.float32(1e-40)
    assert found.threshold.tolist() == [-2.0, 3.0, -np.inf, -0.5, -tiny, 0.0, tiny, 0.5, np.inf]
    assert found.begin.tolist() == [0, 2, 9, 9]
    compared = found.threshold[found.begin[feature] + found.level_threshold]
    np.testing.assert_array_equal(compared, threshold)


def test_more_thresholds_than_a_byte_can_index_are_rejected() -> None:
    threshold = np.arange(50 * DEPTH, dtype=np.float32).reshape(50, DEPTH)
    with pytest.raises(ValueError, match="more thresholds"):
        questions_of(np.zeros((50, DEPTH), dtype=np.int16), threshold, COLUMNS)
