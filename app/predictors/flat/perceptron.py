"""A multi-layer perceptron as plain arrays, converted from scikit-learn's after fitting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from app.tables.arrays import Floats


@dataclass(frozen=True, slots=True, eq=False)
class FlatPerceptron:
    """answer = scale x network((features - centre) / spread) + offset, with ReLU between the layers.

    centre, spread   float64 [columns]
    weights, biases  of each layer, float32 [in, out] and [out]
    """

    centre: Floats
    spread: Floats
    weights: tuple[NDArray[np.float32], ...]
    biases: tuple[NDArray[np.float32], ...]
    scale: float
    offset: float

    @classmethod
    def fitted(cls, features: Floats, target: Floats, *, layers: tuple[int, ...], rounds: int) -> Self:
        """Return a perceptron fitted by least squares to target float64 [n]: Adam, seed 0, `rounds` epochs.

        features  float64 [n, columns]
        """
        import warnings  # noqa: PLC0415  (as scikit-learn: serving never fits)

        from sklearn.exceptions import ConvergenceWarning  # noqa: PLC0415
        from sklearn.neural_network import MLPRegressor  # noqa: PLC0415

        centre, spread = features.mean(axis=0), features.std(axis=0)
        spread = np.where(spread > 0, spread, 1.0)
        offset, scale = float(target.mean()), float(target.std()) or 1.0
        network = MLPRegressor(
            hidden_layer_sizes=layers,
            learning_rate_init=3e-3,
            max_iter=rounds,
            n_iter_no_change=rounds,
            random_state=0,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            network.fit((features - centre) / spread, (target - offset) / scale)
        weights = tuple(layer.astype(np.float32) for layer in network.coefs_)
        return cls(centre, spread, weights, tuple(b.astype(np.float32) for b in network.intercepts_), scale, offset)

    def predict(self, features: Floats) -> Floats:
        """Return predictions float64 [n] for features float64 [n, columns]."""
        layer = (features - self.centre) / self.spread
        for k, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            layer = layer @ weight.astype(np.float64) + bias
            if k < len(self.weights) - 1:
                np.maximum(layer, 0.0, out=layer)
        return self.scale * layer[:, 0] + self.offset

    def state(self) -> dict[str, Any]:
        """Return a plain container of arrays."""
        return {
            "centre": self.centre,
            "spread": self.spread,
            "weights": list(self.weights),
            "biases": list(self.biases),
            "scale": self.scale,
            "offset": self.offset,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the model of a `state`."""
        weights, biases = tuple(state["weights"]), tuple(state["biases"])
        return cls(state["centre"], state["spread"], weights, biases, state["scale"], state["offset"])
