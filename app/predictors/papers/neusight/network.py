"""NeuSight's network (equations 7 and 8): utilisation = alpha - beta / waves, and alpha, beta = sigmoid(MLP(x)).

The network is trained in plain NumPy on the latency that follows from the utilisation (equations 4 to 6), with the
symmetric mean absolute percentage error as loss, by AdamW, as the authors' code does. Theirs has eight layers of 512
units (1.6 million weights); this one has LAYERS of WIDTH, which predicts in microseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from app.predictors.schema import check_shape
from app.runtime.compiled import compiled
from app.tables.arrays import Floats, Singles

WIDTH, LAYERS = 64, 4
# Lower bound of utilisation: a wave may only wait for its launch or for memory.
LEAST_UTILISATION = 1e-4
STEPS, LEAST_STEPS, EPOCHS, BATCH = 6000, 500, 200, 256
RATE = 5e-3
# Noise on the inputs in training, standard deviations in log2. Without it a network trained on five GPUs identifies
# them by their L2 and memory, and fails on any other.
JITTER = np.array([0.0, 0.0, 0.2, 0.2, 0.0], dtype=np.float32)
_FIRST_MOMENT, _SECOND_MOMENT, _EPSILON = 0.9, 0.999, 1e-8


class Examples(NamedTuple):
    """n training rows.

    inputs   float64 [n, 5], table 3's features
    waves    float64 [n]
    ideal_s  float64 [n], latency at full utilisation
    latency_s  float64 [n], measured
    """

    inputs: Floats
    waves: Floats
    ideal_s: Floats
    latency_s: Floats

    def take(self, rows: NDArray[np.intp]) -> Examples:
        """Return the given rows."""
        return Examples(*(column[rows] for column in self))


def utilisation(alpha: Floats, beta: Floats, waves: Floats) -> Floats:
    """Return the utilisation by equation 7, alpha - beta / waves, clamped to [LEAST_UTILISATION, 1]."""
    return np.clip(alpha - beta / waves, LEAST_UTILISATION, 1.0)


@dataclass(frozen=True, slots=True)
class Network:
    """A trained network.

    centre, scale    float32 [5], which standardise inputs
    span             float32 [2, 5], training range of each standardised input, to which inputs are clamped
    weights, biases  float32 [in, out] and [out] of each layer
    """

    centre: Singles
    scale: Singles
    span: Singles
    weights: tuple[Singles, ...]
    biases: tuple[Singles, ...]

    @classmethod
    def fit(cls, examples: Examples, *, decay: float) -> Self:
        """Return a network trained on the examples with weight decay `decay`; deterministic."""
        inputs = examples.inputs.astype(np.float32)
        centre, scale = inputs.mean(axis=0), np.maximum(inputs.std(axis=0), np.float32(1e-3))
        draw = np.random.default_rng(0)
        parameters = _initial(draw, inputs.shape[1])
        x = (inputs - centre) / scale
        given = np.stack([1.0 / examples.waves, examples.ideal_s / examples.latency_s]).astype(np.float32)
        _descend(parameters, x, given, JITTER / scale, decay, draw)
        span = np.stack([x.min(axis=0), x.max(axis=0)])
        return cls(centre, scale, span, tuple(parameters[0::2]), tuple(parameters[1::2]))

    def predict(self, inputs: Floats) -> Floats:
        """Return alpha and beta of features [n, 5], float64 [2, n]; a row's result does not depend on other rows."""
        x = np.clip((inputs.astype(np.float32) - self.centre) / self.scale, self.span[0], self.span[1])
        out = np.empty((2, len(x)))
        weights, biases = self.weights, self.biases
        inner, inner_bias = np.stack(weights[1:-1]), np.stack(biases[1:-1])
        _forward(_Layers(weights[0], biases[0], inner, inner_bias, weights[-1], biases[-1]), x, out)
        return out

    def state(self) -> dict[str, Any]:
        """Return the network as a plain container of arrays."""
        return {
            "centre": self.centre,
            "scale": self.scale,
            "span": self.span,
            "weights": list(self.weights),
            "biases": list(self.biases),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the network of a `state`."""
        weights, biases = tuple(state["weights"]), tuple(state["biases"])
        inputs = len(weights[0])
        check_shape("scales of inputs", state["scale"], inputs)
        check_shape("span of inputs", state["span"], 2, inputs)
        for weight, bias in zip(weights, biases, strict=True):
            check_shape("weights of a layer", weight, inputs, len(bias))
            inputs = len(bias)
        check_shape("outputs", biases[-1], 2)
        return cls(state["centre"], state["scale"], state["span"], weights, biases)


class _Layers(NamedTuple):
    """Weights [in, out] and biases [out] of the first, the stacked inner [d, ...] and the last layers, float32."""

    first: Singles
    first_bias: Singles
    inner: Singles
    inner_bias: Singles
    last: Singles
    last_bias: Singles


@compiled
def _layer(x: Singles, weights: Singles, bias: Singles, out: Singles) -> None:
    out[:] = bias
    for k in range(len(x)):
        if x[k] != 0.0:
            for unit in range(len(out)):
                out[unit] += x[k] * weights[k, unit]


@compiled
def _forward(layers: _Layers, x: Singles, out: Floats) -> None:
    """Fill `out` [2, n] with alpha and beta of standardised features `x` [n, 5]."""
    # Row by row: the rounding of a matrix product depends on the number of rows.
    now, after, end = (
        np.empty_like(layers.first_bias),
        np.empty_like(layers.first_bias),
        np.empty_like(layers.last_bias),
    )
    for q in range(len(x)):
        _layer(x[q], layers.first, layers.first_bias, now)
        for depth in range(len(layers.inner)):
            for unit in range(len(now)):
                now[unit] = max(now[unit], np.float32(0.0))
            _layer(now, layers.inner[depth], layers.inner_bias[depth], after)
            now, after = after, now
        for unit in range(len(now)):
            now[unit] = max(now[unit], np.float32(0.0))
        _layer(now, layers.last, layers.last_bias, end)
        for head in range(2):
            out[head, q] = 1.0 / (1.0 + np.exp(-end[head]))


def _initial(draw: np.random.Generator, features: int) -> list[Singles]:
    """Return initial weights and biases, alternating, by layer (He et al. 2015)."""
    sizes = [features, *[WIDTH] * (LAYERS - 1), 2]
    parameters: list[Singles] = []
    for before, after in pairwise(sizes):
        parameters.append((draw.normal(size=(before, after)) * np.sqrt(2.0 / before)).astype(np.float32))
        parameters.append(np.zeros(after, dtype=np.float32))
    return parameters


def _gradients(parameters: list[Singles], x: Singles, given: Singles) -> list[Singles]:
    """Return the gradients of the mean of |p - t| / (p + t) with respect to every parameter.

    given  float32 [2, n], 1 / waves, and ideal / measured latency t
    """
    layers = [x]
    for weights, bias in zip(parameters[0:-2:2], parameters[1:-2:2], strict=True):
        layers.append(np.maximum(layers[-1] @ weights + bias, 0.0))
    heads = 1.0 / (1.0 + np.exp(-(layers[-1] @ parameters[-2] + parameters[-1])))
    per_wave, ideal = given
    # Below the bound the gradient is the bound's, so that training can leave it.
    used = np.maximum(heads[:, 0] - heads[:, 1] * per_wave, LEAST_UTILISATION)
    ratio = ideal / used
    slope = np.sign(ratio - 1.0) * 2.0 / (ratio + 1.0) ** 2 * (-ratio / used) / len(x)
    back = np.stack([slope, -slope * per_wave], axis=1) * heads * (1.0 - heads)
    gradients: list[Singles] = []
    for depth in range(len(layers) - 1, -1, -1):
        gradients[:0] = [layers[depth].T @ back, back.sum(axis=0)]
        if depth:
            back = (back @ parameters[2 * depth].T) * (layers[depth] > 0.0)
    return gradients


def _descend(
    parameters: list[Singles], x: Singles, given: Singles, jitter: Singles, decay: float, draw: np.random.Generator
) -> None:
    """Train in place by AdamW (Loshchilov and Hutter 2019), with a cosine learning rate; `jitter` float32 [5]."""
    first, second = ([np.zeros_like(p) for p in parameters] for _ in range(2))
    batches = max(1, len(x) // BATCH)
    steps = min(STEPS, max(LEAST_STEPS, EPOCHS * batches))
    for step in range(steps):
        if step % batches == 0:
            order = draw.permutation(len(x))
        rows = order[step % batches :: batches]
        rate = RATE * 0.5 * (1.0 + np.cos(np.pi * step / steps))
        corrected = rate * np.sqrt(1.0 - _SECOND_MOMENT ** (step + 1)) / (1.0 - _FIRST_MOMENT ** (step + 1))
        seen = x[rows] + jitter * draw.standard_normal((len(rows), len(jitter)), dtype=np.float32)
        for k, gradient in enumerate(_gradients(parameters, seen, given[:, rows])):
            first[k] += (1.0 - _FIRST_MOMENT) * (gradient - first[k])
            second[k] += (1.0 - _SECOND_MOMENT) * (gradient**2 - second[k])
            parameters[k] *= np.float32(1.0 - rate * decay)
            parameters[k] -= np.float32(corrected) * first[k] / (np.sqrt(second[k]) + np.float32(_EPSILON))
