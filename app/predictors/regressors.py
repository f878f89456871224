"""The cross-GPU kernels paper's seven regressors (table 6), over source-target pairs.

scikit-learn fits, flat arrays serve. The target is raw milliseconds and nothing is scaled, as in the authors' code;
the hyper-parameters are theirs. An eighth is a fitting function, its line in FITTERS and a class that names it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lstsq
from sklearn.ensemble import GradientBoostingRegressor, RandomForestRegressor
from sklearn.linear_model import Lasso, Ridge
from sklearn.svm import SVR

from app.errors import NotTrained
from app.predictors.flat_models import Affine, FlatModel, Neighbours, RadialBasis, flat_model
from app.predictors.flat_trees import FlatTrees
from app.predictors.intervals import RELATED
from app.predictors.pairs import MS_PER_S, gpu_features, one_row_per_gpu, ordered_pairs, pair_features
from app.predictors.roofline import hardware_limit
from app.predictors.sources import Sources
from app.tables.gpus import GpuTable
from app.tables.measurements import Evidence, Measurements
from app.tables.ops import OpTable
from app.tables.predictions import Estimate

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

NEIGHBOURS = 5
# Beyond this many pairs a seeded sample is learned from: artefacts stay under some 25 MB, and the kernel
# machine, whose cost grows with the square, fits in seconds.
MAX_PAIRS = 5000


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


class PairRegressor:
    """One regressor as a predictor: every piece of evidence and its query is a pair to answer."""

    name: ClassVar[str]
    trainable: ClassVar[bool] = True
    needs_training: ClassVar[bool] = True
    model_: FlatModel

    def fit(self, measurements: Measurements, gpus: GpuTable) -> Self:
        """Learn from all ordered pairs of one launch measured on two GPUs."""
        rows, launch = one_row_per_gpu(measurements)
        source, target = ordered_pairs(launch)
        if len(source) == 0:
            raise NotTrained(f"'{self.name}' learns from launches measured on two or more GPUs; there is none yet.")
        if len(source) > MAX_PAIRS:
            kept = np.sort(np.random.default_rng(0).choice(len(source), MAX_PAIRS, replace=False))
            source, target = source[kept], target[kept]
        features = pair_features(
            rows.ops.take(target),
            rows.latency_s[source],
            gpu_features(gpus, rows.gpu[source]),
            gpu_features(gpus, rows.gpu[target]),
        )
        self.model_ = FITTERS[self.name](features, rows.latency_s[target] * MS_PER_S)
        return self

    def predict(self, ops: OpTable, gpus: GpuTable, i: Ints, j: Ints, *, evidence: Evidence) -> Estimate:
        """Each query from its strongest evidence; several pieces give their geometric mean."""
        sources = Sources.strongest(ops, i, j, evidence, weakest=RELATED)
        rows, query = evidence.rows.take(sources.pair), sources.query
        features = pair_features(
            ops.take(i[query]), rows.latency_s, gpu_features(gpus, rows.gpu), gpu_features(gpus, j[query])
        )
        latency = sources.mean(self.model_.predict(features) / MS_PER_S)
        return Estimate(latency, hardware_limit(ops, gpus, i, j).bound, sources.support(), sources.group)

    def state(self) -> dict[str, Any]:
        """The fitted model as flat arrays."""
        return {"model": self.model_.state()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Ready to serve, without scikit-learn."""
        regressor = cls()
        regressor.model_ = flat_model(state["model"])
        return regressor


class Forest(PairRegressor):
    """The paper's "ML model"."""

    name = "forest"


class Linear(PairRegressor):
    """Ordinary least squares."""

    name = "linear"


class RidgeRegression(PairRegressor):
    """Ridge regression."""

    name = "ridge"


class LassoRegression(PairRegressor):
    """Lasso."""

    name = "lasso"


class SupportVectors(PairRegressor):
    """Support vector regression."""

    name = "svr"


class Boosting(PairRegressor):
    """Gradient boosting."""

    name = "boosting"


class NearestNeighbours(PairRegressor):
    """k nearest neighbours."""

    name = "knn"


REGRESSORS: tuple[type[PairRegressor], ...] = (
    Forest,
    Linear,
    RidgeRegression,
    LassoRegression,
    SupportVectors,
    Boosting,
    NearestNeighbours,
)
