"""What few rows of a GPU teach of an operator in a dtype: the likeliest answer of models.gaussian_process.

The constants of the physics, in which times are not linear, are found by Gauss-Newton with all else integrated out;
given them the rest is linear (Rasmussen and Williams 2006, section 2.7). It becomes a mean, leaves of the trees that
others taught, and a smooth correction, so that it is served as any other model.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from app.predictors.auto.operators.models.boosted_trees import Trees
from app.predictors.auto.operators.models.gaussian_process import (
    CONSTANTS,
    LEAF,
    NEAR,
    OFFSET,
    STRENGTH,
    Kernels,
    Places,
    Rest,
    View,
    matern,
    taught,
)
from app.predictors.auto.operators.models.gaussian_process import dependence as dependence_of
from app.predictors.auto.operators.models.smooth import Smooth
from app.predictors.auto.operators.models.tree_sums import LEAVES
from app.predictors.auto.operators.physics.physics_fit import LEAST_FACTORS, MOST_FACTORS, fill_scaled
from app.tables.arrays import Floats, Singles

# What the smooth rest may be, from its usual middle; found one at a time by the marginal likelihood.
LENGTHS, AMPLITUDES, NOISES = (1.0, 2.0, 4.0), (0.1, 0.2, 0.4, 0.8), (0.03, 0.06, 0.12)
_MIDDLE = Rest(LENGTHS[1], AMPLITUDES[1], NOISES[1])
_ROUNDS = 2
# Steps of Gauss-Newton, and how often one is shortened, each time to this part.
_STEPS, _CUTS, _CUT = 4, 5, 0.4
_ENOUGH = 1e-3
# A row counts as far as this many standard deviations from what the others say of it, or by this part of its logarithm
# if that is more; how often that is looked at.
_SURPRISE, _LEAST_SURPRISE, _LOOKS = 2.0, 0.3, 2
# The same where a library chooses among algorithms: rows that ran another than the quickest are many.
_SURPRISE_OF_CHOICE, _LEAST_OF_CHOICE = 1.0, 0.1


class Rows(NamedTuple):
    """Measured rows: terms [TERMS, n], log(measured / what others taught) [n], features [FEATURES, n], and `places`.

    `chosen`: a library chooses among algorithms for them.
    """

    terms: Floats
    target: Floats
    features: Singles
    places: Places
    chosen: bool = False


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
    """From `start`, the constants [FACTORS] that others taught, and the trees that they did.

    A row that the others contradict would draw its neighbours after it, so it counts only as far as they allow.
    """
    view = View.of(rows.features, rows.places, kernels)
    known, told = taught(view, view, kernels), rows.target
    rest, prior, found = _likeliest(rows, view, start, known)
    for _ in range(_LOOKS):
        rows = rows._replace(target=_plausible(told, rows, found, prior))
        rest, prior, found = _likeliest(rows, view, start, known)
    mean = OFFSET**2 * float(found.weight.sum())
    return Calibration(
        found.factors, mean, _trees(view, kernels, found.weight), _smooth(rows, view, rest, found.weight)
    )


def _likeliest(rows: Rows, view: View, start: Floats, known: Floats) -> tuple[Rest, Floats, _Found]:
    """The most likely rest, the covariance of the rows by it, noise and what is `known`, and what then is found."""

    def tried(rest: Rest) -> tuple[Rest, Floats, _Found]:
        smooth = rest.amplitude**2 * matern(view.place, view.place, rest.length)
        prior = known + smooth + rest.noise**2 * np.eye(len(known))
        return rest, prior, _solved(rows, start, prior)

    best = tried(_MIDDLE)
    for _ in range(_ROUNDS):
        for name, choices in zip(Rest._fields, (LENGTHS, AMPLITUDES, NOISES), strict=True):
            for choice in choices:
                rest = best[0]._replace(**{name: choice})
                if rest != best[0]:
                    trial = tried(rest)
                    best = trial if trial[-1].loss < best[-1].loss else best
    return best


def _plausible(told: Floats, rows: Rows, found: _Found, prior: Floats) -> Floats:
    """Targets as `told` [n], each kept near what all rows but it say (Rasmussen and Williams 2006, section 5.4.2)."""
    slope = dependence_of(rows.terms, found.factors) * CONSTANTS
    precision = np.diag(np.linalg.inv(prior + slope @ slope.T))
    said = rows.target - found.weight / precision
    deviations, least = (_SURPRISE_OF_CHOICE, _LEAST_OF_CHOICE) if rows.chosen else (_SURPRISE, _LEAST_SURPRISE)
    most = np.maximum(deviations / np.sqrt(precision), least)
    return np.clip(told, said - most, said + most)


def _solved(rows: Rows, start: Floats, prior: Floats) -> _Found:
    """Gauss-Newton with steps that are shortened until they help."""
    from scipy.linalg import cho_factor, cho_solve  # noqa: PLC0415  (serving never fits)

    factor = cho_factor(prior, lower=True)
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
    more = np.float64(STRENGTH**2 * (view.learned @ weight))  # whatever precision the leaves are in
    value = more * kernels.trees.value + LEAF**2 * kernels.share[:, None] * (held @ NEAR)
    return kernels.trees._replace(value=value.astype(np.float32))


def _smooth(rows: Rows, view: View, rest: Rest, weight: Floats) -> Smooth:
    return Smooth(
        rows.places.column.astype(np.int16),
        (rows.places.stretch / rest.length).astype(np.float32),
        (view.place / rest.length).astype(np.float32),
        (rest.amplitude**2 * weight).astype(np.float32),
    )
