"""What few rows of a GPU teach of an operator in a dtype: the likeliest answer of app.predictors.operators.process.

The constants of the physics, in which times are not linear, are found by Gauss-Newton with all else integrated out;
given them the rest is linear (Rasmussen and Williams 2006, section 2.7). It becomes a mean, leaves of the trees that
others taught, and a smooth correction, so that it is served as any other model.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.predictors.operators.boosting import LEAVES, Trees
from app.predictors.operators.constants import LEAST_FACTORS, MOST_FACTORS, fill_scaled
from app.predictors.operators.process import (
    CONSTANTS,
    LEAF,
    NEAR,
    OFFSET,
    STRENGTH,
    Kernels,
    Rest,
    View,
    columns,
    covariance,
)
from app.predictors.operators.process import dependence as dependence_of
from app.predictors.operators.smooth import Smooth

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Ints = NDArray[np.intp]

# What the smooth rest may be, from its usual middle; found one at a time by the marginal likelihood.
LENGTHS, AMPLITUDES, NOISES = (1.0, 2.0, 4.0), (0.1, 0.2, 0.4), (0.03, 0.06, 0.12)
_MIDDLE = Rest(LENGTHS[1], AMPLITUDES[1], NOISES[1])
_ROUNDS = 2
# Steps of Gauss-Newton, and how often one is shortened, each time to this part.
_STEPS, _CUTS, _CUT = 4, 5, 0.4
_ENOUGH = 1e-3


class Rows(NamedTuple):
    """Measured rows: terms [TERMS, n], log(measured / what others taught) [n], features [FEATURES, n], and `sizes`."""

    terms: Floats
    target: Floats
    features: Singles
    sizes: Ints


class Calibration(NamedTuple):
    """What was learned: constants, and the corrections on top of the physics under them."""

    factors: Floats
    mean: float
    trees: Trees
    smooth: Smooth


class _Found(NamedTuple):
    """The most likely constants, minus the log marginal likelihood there, and the weights of the rows."""

    loss: float
    factors: Floats
    weight: Floats


def calibrate(rows: Rows, start: Floats, kernels: Kernels) -> Calibration:
    """From `start`, the constants [FACTORS] that others taught, and the trees that they did."""
    view = View.of(rows.features, rows.sizes, kernels)
    rest, found = _MIDDLE, _solved(rows, start, covariance(view, view, kernels, _MIDDLE), _MIDDLE.noise)
    for _ in range(_ROUNDS):
        for name, choices in zip(Rest._fields, (LENGTHS, AMPLITUDES, NOISES), strict=True):
            for choice in choices:
                trial = rest._replace(**{name: choice})
                if trial != rest:
                    other = _solved(rows, start, covariance(view, view, kernels, trial), trial.noise)
                    rest, found = (trial, other) if other.loss < found.loss else (rest, found)
    mean = OFFSET**2 * float(found.weight.sum())
    return Calibration(
        found.factors, mean, _trees(view, kernels, found.weight), _smooth(rows, view, rest, found.weight)
    )


def _solved(rows: Rows, start: Floats, prior: Floats, noise: float) -> _Found:
    """Gauss-Newton with steps that are shortened until they help."""
    from scipy.linalg import cho_factor, cho_solve  # noqa: PLC0415  (serving never fits)

    factor = cho_factor(prior + noise**2 * np.eye(len(prior)), lower=True)
    origin = np.log(start)
    low, high = np.minimum(np.log(LEAST_FACTORS), origin), np.maximum(np.log(MOST_FACTORS), origin)
    tightness = np.diag(CONSTANTS**-2.0)

    def judged(point: Floats) -> tuple[float, Floats, Floats]:
        physics = np.empty(len(prior))
        fill_scaled(rows.terms, np.exp(point), physics)
        left = rows.target - np.log(physics)
        weight = cho_solve(factor, left)
        return float(0.5 * left @ weight + 0.5 * (((point - origin) / CONSTANTS) ** 2).sum()), left, weight

    point, (loss, _, weight) = origin, judged(origin)
    for _ in range(_STEPS):
        slope = dependence_of(rows.terms, np.exp(point))
        step = np.linalg.solve(
            slope.T @ cho_solve(factor, slope) + tightness, slope.T @ weight - tightness @ (point - origin)
        )
        before = loss
        for _ in range(_CUTS):
            trial = np.clip(point + step, low, high)
            if (tried := judged(trial))[0] < loss:
                point, (loss, _, weight) = trial, tried
                break
            step = _CUT * step
        if before - loss < _ENOUGH:
            break
    slope = dependence_of(rows.terms, np.exp(point))
    _, volume = np.linalg.slogdet(slope.T @ cho_solve(factor, slope) + tightness)
    return _Found(loss + float(np.log(np.diag(factor[0])).sum()) + 0.5 * float(volume), np.exp(point), weight)


def _trees(view: View, kernels: Kernels, weight: Floats) -> Trees:
    """The others' trees: more or less of them, and leaves that say what the rows in them and near them ran like."""
    held = np.zeros((len(kernels.share), LEAVES))
    for tree in range(len(held)):
        held[tree] = np.bincount(view.leaf[:, tree], weights=weight, minlength=LEAVES)
    more = STRENGTH**2 * float(view.learned @ weight)
    value = more * kernels.trees.value + LEAF**2 * kernels.share[:, None] * (held @ NEAR)
    return kernels.trees._replace(value=value.astype(np.float32))


def _smooth(rows: Rows, view: View, rest: Rest, weight: Floats) -> Smooth:
    used = columns(rows.sizes)
    return Smooth(
        used.astype(np.int16),
        np.full(len(used), 1.0 / rest.length, dtype=np.float32),
        (view.place / rest.length).astype(np.float32),
        (rest.amplitude**2 * weight).astype(np.float32),
    )
