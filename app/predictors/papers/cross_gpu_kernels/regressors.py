"""The cross-GPU kernels paper's seven regressors (table 6), over source-target pairs.

scikit-learn fits, flat arrays serve. The target is raw milliseconds and nothing is scaled, as in the authors' code;
the hyper-parameters are theirs. An eighth is a fitting function, its line in FITTERS and a class that names it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Self

import numpy as np

from app.bands.groups import RELATED
from app.errors import NotTrained
from app.predictors.base import Capabilities
from app.predictors.flat.regressors import FlatModel, flat_model
from app.predictors.launches.strongest_evidence import Sources
from app.predictors.papers.cross_gpu_kernels.pairs import (
    MS_PER_S,
    PAIR_FEATURES,
    gpu_features,
    one_row_per_gpu,
    ordered_pairs,
    pair_features,
)
from app.predictors.roofline import hardware_limit
from app.predictors.schema import Layout
from app.tables.arrays import Ints
from app.tables.gpus import GpuTable
from app.tables.measurements import Evidence, Measurements
from app.tables.ops import OpTable
from app.tables.predictions import Estimate

# Most pairs to train on; of more, a seeded sample: artefacts stay under some 25 MB, and the support vector machine,
# whose cost grows with the square, fits in seconds.
MAX_PAIRS = 5000


class PairRegressor:
    """One regressor as a predictor: every pair of evidence and query has a prediction."""

    name: ClassVar[str]
    can: ClassVar[Capabilities] = Capabilities(("launches",), ("launches",), needs_training=True)
    model_: FlatModel

    def fit(self, measurements: Measurements, gpus: GpuTable, *, target_gpu: str | None = None) -> Self:
        """Return the regressor fitted to all ordered pairs of a launch on two GPUs; with `target_gpu`, those to it."""
        from app.predictors.papers.cross_gpu_kernels.regressor_fit import FITTERS  # noqa: PLC0415  (seconds and 80 MB that serving never needs)

        rows, launch = one_row_per_gpu(measurements)
        source, target = ordered_pairs(launch)
        if target_gpu is not None:
            to_it = np.array([gpus.ids[gpu] == target_gpu for gpu in rows.gpu[target]], dtype=bool)
            source, target = source[to_it], target[to_it]
        if len(source) == 0:
            where = "two or more GPUs" if target_gpu is None else f"{target_gpu} and on another GPU"
            raise NotTrained(f"'{self.name}' learns from launches measured on {where}; there is none yet.")
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
        """Return each query's prediction from its strongest evidence; of several, the geometric mean."""
        sources = Sources.strongest(ops, i, j, evidence, weakest=RELATED)
        rows, query = evidence.rows.take(sources.pair), sources.query
        features = pair_features(
            ops.take(i[query]), rows.latency_s, gpu_features(gpus, rows.gpu), gpu_features(gpus, j[query])
        )
        latency = sources.mean(self.model_.predict(features) / MS_PER_S)
        return Estimate(latency, hardware_limit(ops, gpus, i, j).bound, sources.support(), sources.group)

    @staticmethod
    def learned_cells(state: Mapping[str, Any]) -> list[tuple[str, str]]:
        """No operators: launches only."""
        return []

    @staticmethod
    def layout(operators: Collection[str]) -> Layout:
        """Of a fitted model."""
        return Layout({"features of pairs": PAIR_FEATURES})

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
