"""Regressors as plain arrays and one `predict`: what is left of an estimator once it is fitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from app.predictors.flat.trees import FlatTrees

Floats = NDArray[np.float64]

# Distances held at once: 4 MB.
_CHUNK = 1 << 19


class FlatModel(Protocol):
    """Features float64 [n, columns] to answers float64 [n]."""

    def predict(self, features: Floats) -> Floats:
        """Answers, float64 [n]; one row alone gives what it gives among others."""
        ...

    def state(self) -> dict[str, Any]:
        """Arrays and numbers, with the model's kind under "kind"."""
        ...


@dataclass(frozen=True, slots=True)
class Affine:
    """answer = features . coefficients + intercept."""

    kind: ClassVar[str] = "affine"
    coefficients: Floats
    intercept: float

    def predict(self, features: Floats) -> Floats:
        """Summed row by row: a matrix product would round differently with the number of rows."""
        total: Floats = (features * self.coefficients).sum(axis=1)
        return total + self.intercept

    def state(self) -> dict[str, Any]:
        """As a plain container of arrays."""
        return {"kind": self.kind, "coefficients": self.coefficients, "intercept": self.intercept}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """The inverse of `state`."""
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
        """Chunked over rows."""
        from scipy.spatial.distance import cdist  # noqa: PLC0415  (workers that do not serve it spare its memory)

        step = max(_CHUNK // max(len(self.centres), 1), 1)
        answer = np.empty(len(features))
        for start in range(0, len(features), step):
            rows = slice(start, start + step)
            kernel = np.exp(-self.gamma * cdist(features[rows], self.centres, "sqeuclidean"))
            answer[rows] = (kernel * self.weights).sum(axis=1) + self.intercept
        return answer

    def state(self) -> dict[str, Any]:
        """As a plain container of arrays."""
        return {
            "kind": self.kind,
            "centres": self.centres,
            "weights": self.weights,
            "gamma": self.gamma,
            "intercept": self.intercept,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """The inverse of `state`."""
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
        """Chunked over rows; a tie at the k-th distance is broken by position."""
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
        """As a plain container of arrays."""
        return {"kind": self.kind, "points": self.points, "values": self.values, "k": self.k}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """The inverse of `state`."""
        return cls(state["points"], state["values"], state["k"])


FLAT_MODELS: tuple[type[Affine] | type[RadialBasis] | type[Neighbours] | type[FlatTrees], ...] = (
    Affine,
    RadialBasis,
    Neighbours,
    FlatTrees,
)


def flat_model(state: Mapping[str, Any]) -> FlatModel:
    """The model that `state()` describes."""
    return next(model for model in FLAT_MODELS if model.kind == state["kind"]).from_state(state)
