"""Flat trees predict what scikit-learn's trees predict."""

import numpy as np
import pytest
from sklearn.ensemble import GradientBoostingRegressor, RandomForestRegressor
from sklearn.tree import DecisionTreeRegressor

from app.predictors.flat import FlatTrees


def data(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Features of very different scales, some repeated, and a rough target."""
    rng = np.random.default_rng(3)
    features = rng.lognormal(sigma=3, size=(rows, 6)) * np.array([1e-3, 1, 1, 1e3, 1e6, 1e10])
    features[:, 2] = np.round(features[:, 2])
    return features, np.log1p(features).sum(axis=1) + rng.normal(size=rows)


def test_a_stump_by_hand() -> None:
    features = np.array([[1.0], [2.0], [4.0]])
    tree = DecisionTreeRegressor(max_depth=1).fit(features, np.array([10.0, 10.0, 40.0]))
    flat = FlatTrees.from_sklearn([tree], scale=0.5, offset=1.0)
    # Split halfway between 2 and 4; answers 1 + 10 / 2 and 1 + 40 / 2. The threshold itself goes left.
    assert flat.predict(np.array([[3.0], [3.0001], [-1e30], [1e30]])).tolist() == [6.0, 21.0, 6.0, 21.0]
    assert (flat.depth, flat.child.tolist(), flat.root.tolist()) == (1, [1, 1, 2], [0])


def test_a_tree_without_a_split() -> None:
    tree = DecisionTreeRegressor().fit(np.ones((2, 1)), np.array([3.0, 5.0]))
    assert FlatTrees.from_sklearn([tree], scale=1.0).predict(np.zeros((2, 1))).tolist() == [4.0, 4.0]


def test_equals_a_forest_on_its_own_split_points() -> None:
    features, target = data(300)
    forest = RandomForestRegressor(n_estimators=30, random_state=0).fit(features, target)
    flat = FlatTrees.from_sklearn(forest.estimators_, scale=1 / 30)
    # Rows that sit exactly on thresholds, where rounding would show.
    thresholds = np.concatenate([tree.tree_.threshold[tree.tree_.feature == 4] for tree in forest.estimators_])
    edge = np.repeat(features[:1], len(thresholds), axis=0)
    edge[:, 4] = thresholds
    for rows in (features, data(500)[0], edge):
        assert flat.predict(rows) == pytest.approx(forest.predict(rows), rel=1e-12)


def test_equals_boosting() -> None:
    features, target = data(300)
    boosting = GradientBoostingRegressor(random_state=0).fit(features, target)
    flat = FlatTrees.from_sklearn(
        boosting.estimators_[:, 0], scale=boosting.learning_rate, offset=boosting.init_.constant_.item()
    )
    assert flat.predict(features) == pytest.approx(boosting.predict(features), rel=1e-12)


def test_chunks_and_stored_states_predict_equally() -> None:
    features, target = data(200)
    forest = RandomForestRegressor(n_estimators=200, random_state=0).fit(features, target)
    flat = FlatTrees.from_sklearn(forest.estimators_, scale=1 / 200)
    many = data(1500)[0]
    whole = FlatTrees.from_state(flat.state()).predict(many)
    assert whole.tolist() == [flat.predict(many[k : k + 1]).item() for k in range(1500)]
    assert flat.predict(many[:0]).shape == (0,)
