"""Fits of the paper's seven regressors (table 6) by scikit-learn, converted to flat models.

Hyper-parameters are the authors'. Only fitting imports this module: serving needs no scikit-learn.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy.linalg import lstsq
from sklearn.ensemble import GradientBoostingRegressor, RandomForestRegressor
from sklearn.linear_model import Lasso, Ridge
from sklearn.svm import SVR

from app.predictors.flat import Affine, FlatModel, FlatTrees, Neighbours, RadialBasis
from app.tables.arrays import Floats

NEIGHBOURS = 5


def fit_forest(features: Floats, target_ms: Floats) -> FlatTrees:
    """Random forest, 200 trees, seed 0."""
    forest = RandomForestRegressor(n_estimators=200, random_state=0).fit(features, target_ms)
    return FlatTrees.from_sklearn(forest.estimators_, scale=1 / len(forest.estimators_))


def fit_boosting(features: Floats, target_ms: Floats) -> FlatTrees:
    """Gradient boosting with scikit-learn's defaults, seed 0; the paper's "XGBoost"."""
    boosting = GradientBoostingRegressor(random_state=0).fit(features, target_ms)
    return FlatTrees.from_sklearn(
        boosting.estimators_[:, 0], scale=boosting.learning_rate, offset=float(boosting.init_.constant_.item())
    )


def fit_linear(features: Floats, target_ms: Floats) -> Affine:
    """Least squares of minimum norm on centred columns, which repeat one another: the solver decides the answer."""
    centre, mean = features.mean(axis=0), float(target_ms.mean())
    coefficients = lstsq(features - centre, target_ms - mean)[0]
    return Affine(coefficients, mean - float(centre @ coefficients))


def fit_ridge(features: Floats, target_ms: Floats) -> Affine:
    """Ridge regression, alpha 1.

    The normal equations are so ill-conditioned that the order of summation shows in the sixth digit; columns are
    laid out as in the authors' data frame.
    """
    return _affine(Ridge(alpha=1.0), np.asfortranarray(features), target_ms)


def fit_lasso(features: Floats, target_ms: Floats) -> Affine:
    """Lasso, alpha 0.001."""
    return _affine(Lasso(alpha=0.001), features, target_ms)


def _affine(estimator: Any, features: Floats, target_ms: Floats) -> Affine:
    with warnings.catch_warnings():
        # Unscaled columns from 1 to 1e10: ill-conditioned and not converged in the paper too.
        warnings.simplefilter("ignore")
        estimator.fit(features, target_ms)
    return Affine(np.asarray(estimator.coef_, dtype=np.float64), float(estimator.intercept_))


def fit_svr(features: Floats, target_ms: Floats) -> RadialBasis:
    """Support vector regression with a Gaussian kernel, C 10, epsilon 0.001."""
    machine = SVR(kernel="rbf", C=10, epsilon=0.001).fit(features, target_ms)
    spread = float(features.var())
    gamma = 1 / (features.shape[1] * spread) if spread else 1.0
    return RadialBasis(machine.support_vectors_, machine.dual_coef_[0], gamma, float(machine.intercept_[0]))


def fit_knn(features: Floats, target_ms: Floats) -> Neighbours:
    """Mean of the five nearest pairs."""
    return Neighbours(features, target_ms, min(NEIGHBOURS, len(features)))


FITTERS: Mapping[str, Callable[[Floats, Floats], FlatModel]] = {
    "forest": fit_forest,
    "linear": fit_linear,
    "ridge": fit_ridge,
    "lasso": fit_lasso,
    "svr": fit_svr,
    "boosting": fit_boosting,
    "knn": fit_knn,
}
