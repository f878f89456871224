"""Fitted regressors as plain arrays with a common `predict`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

import numpy as np

from app.predictors.flat.trees import FlatTrees
from app.tables.arrays import Floats

# Distances per chunk: 4 MB.
_CHUNK = 1 << 19


class FlatModel(Protocol):
    """A fitted regressor: features float64 [n, columns] to predictions float64 [n]."""

    def predict(self, features: Floats) -> Floats:
        """Return predictions, float64 [n]; a row's prediction does not depend on other rows."""
        ...

    def state(self) -> dict[str, Any]:
        """Return arrays and numbers, with the model's kind under "kind"."""
        ...


@dataclass(frozen=True, slots=True)
class Affine:
    """answer = features . coefficients + intercept."""

    kind: ClassVar[str] = "affine"
    coefficients: Floats
    intercept: float

    def predict(self, features: Floats) -> Floats:
        """Return predictions; sums by row, since the rounding of a matrix product depends on the number of rows."""
        total: Floats = (features * self.coefficients).sum(axis=1)
        return total + self.intercept

    def state(self) -> dict[str, Any]:
        """Return a plain container of arrays."""
        return {"kind": self.kind, "coefficients": self.coefficients, "intercept": self.intercept}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the model of a `state`."""
        return cls(state["coefficients"], state["intercept"])


@dataclass(frozen=True, slots=True)
class RadialBasis:
    """answer = intercept + sum over centres of weight exp(-gamma |x - centre|^2).

    centres  float64 [centres, columns];  weights  float64 [centres]
    """

    kind: ClassVar[str] = "radial_basis"
    centres: Floats
    weights: Floats
    gamma: float
    intercept: float

    def predict(self, features: Floats) -> Floats:
        """Return predictions, in chunks of rows."""
        from scipy.spatial.distance import cdist  # noqa: PLC0415  (workers that do not serve it spare its memory)

        step = max(_CHUNK // max(len(self.centres), 1), 1)
        answer = np.empty(len(features))
        for start in range(0, len(features), step):
            rows = slice(start, start + step)
            kernel = np.exp(-self.gamma * cdist(features[rows], self.centres, "sqeuclidean"))
            answer[rows] = (kernel * self.weights).sum(axis=1) + self.intercept
        return answer

    def state(self) -> dict[str, Any]:
        """Return a plain container of arrays."""
        return {
            "kind": self.kind,
            "centres": self.centres,
            "weights": self.weights,
            "gamma": self.gamma,
            "intercept": self.intercept,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the model of a `state`."""
        return cls(state["centres"], state["weights"], state["gamma"], state["intercept"])


@dataclass(frozen=True, slots=True)
class Neighbours:
    """answer = mean over the `k` nearest points by Euclidean distance.

    points  float64 [points, columns];  values  float64 [points]
    """

    kind: ClassVar[str] = "neighbours"
    points: Floats
    values: Floats
    k: int

    def predict(self, features: Floats) -> Floats:
        """Return predictions, in chunks of rows; a tie at the k-th distance is broken by position."""
        from scipy.spatial.distance import cdist  # noqa: PLC0415  (workers that do not serve it spare its memory)

        step = max(_CHUNK // len(self.points), 1)
        answer = np.empty(len(features))
        for start in range(0, len(features), step):
            rows = slice(start, start + step)
            distance = cdist(features[rows], self.points, "sqeuclidean")
            nearest = np.argsort(distance, axis=1, kind="stable")[:, : self.k]
            answer[rows] = self.values[nearest].mean(axis=1)
        return answer

    def state(self) -> dict[str, Any]:
        """Return a plain container of arrays."""
        return {"kind": self.kind, "points": self.points, "values": self.values, "k": self.k}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the model of a `state`."""
        return cls(state["points"], state["values"], state["k"])


FLAT_MODELS: tuple[type[Affine] | type[RadialBasis] | type[Neighbours] | type[FlatTrees], ...] = (
    Affine,
    RadialBasis,
    Neighbours,
    FlatTrees,
)


def flat_model(state: Mapping[str, Any]) -> FlatModel:
    """Return the model of a `state`, by its kind."""
    return next(model for model in FLAT_MODELS if model.kind == state["kind"]).from_state(state)
