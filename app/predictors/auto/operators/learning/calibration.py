"""Calibration of a cell to few rows of a GPU: the posterior mode of models.gaussian_process.

The constants of the physics, in which times are not linear, are fitted by Gauss-Newton with all else integrated out;
given them the rest is linear (Rasmussen and Williams 2006, section 2.7). The result is a mean, new leaf values for the
trees of the shared model, and a smooth correction, so that it is served like any other model.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from app.coefficients import Coefficients
from app.predictors.auto.operators.models.corrections import Smooth
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
    transfer_covariance,
)
from app.predictors.auto.operators.models.gaussian_process import dependence as dependence_of
from app.predictors.auto.operators.models.per_operator import Model
from app.predictors.physics.physics_fit import LEAST_FACTORS, MOST_FACTORS, fill_scaled
from app.predictors.trees.boosted import Trees
from app.predictors.trees.sums import LEAVES
from app.tables.arrays import Floats, Singles

_FITTED = Coefficients("learning")

# Candidates of the smooth part's length, amplitude and noise.
LENGTHS, AMPLITUDES, NOISES = (
    _FITTED.numbers("smooth_lengths"),
    _FITTED.numbers("smooth_amplitudes"),
    _FITTED.numbers("smooth_noises"),
)
_MIDDLE = Rest(LENGTHS[1], AMPLITUDES[1], NOISES[1])
_ROUNDS = 2
# Gauss-Newton steps, most shortenings of a step, and the factor of each.
_STEPS, _SHORTENINGS, _SHORTER = 4, 5, 0.4
_ENOUGH = 1e-3
# Targets are clipped to this many standard deviations from their leave-one-out prediction, at least to this log ratio;
# and how often.
_SURPRISE, _LEAST_SURPRISE = _FITTED.each("surprise", "least_surprise")
_CLIPPINGS = 2
# The same where a library chooses among algorithms: many rows ran another than the quickest.
_SURPRISE_OF_CHOICE, _LEAST_OF_CHOICE = _FITTED.each("surprise_of_choice", "least_surprise_of_choice")
# Parts of the correction that may be served. The standard deviations are those between any two GPUs, so that the rows
# of one which others predict well would change its answers too much.
_PARTS = (0.0, 0.25, 0.5, 0.75, 1.0)


class Rows(NamedTuple):
    """Measured rows of one operator in one dtype on one GPU.

    terms     float64 [TERMS, n], seconds by the physics
    target    float64 [n], log(measured / corrections of the other GPUs' models)
    features  float32 [FEATURES, n]
    places    coordinates of the Gaussian process
    chosen    whether a library chooses among algorithms for them
    predicted  whether other GPUs' models predict them already, so that less than the whole correction may be better
    """

    terms: Floats
    target: Floats
    features: Singles
    places: Places
    chosen: bool = False
    predicted: bool = False


class _Mode(NamedTuple):
    """The most likely constants [FACTORS], the negative log marginal likelihood there, and the rows' weights [n]."""

    loss: float
    factors: Floats
    weight: Floats


def calibrate(rows: Rows, start: Floats, kernels: Kernels) -> Model:
    """The model calibrated to `rows`, from the constants `start` [FACTORS] and the trees of the other GPUs.

    Outliers would draw their neighbours with them, so targets are clipped near their leave-one-out predictions.
    """
    view = View.of(rows.features, rows.places, kernels)
    known, measured = transfer_covariance(view, view, kernels), rows.target
    rest, prior, mode = _likeliest(rows, view, start, known)
    for _ in range(_CLIPPINGS):
        rows = rows._replace(target=_clipped(measured, rows, mode, prior))
        rest, prior, mode = _likeliest(rows, view, start, known)
    part = _served_part(measured, rows, start, mode, prior) if rows.predicted else 1.0
    factors, weight = start * (mode.factors / start) ** part, part * mode.weight
    mean = OFFSET**2 * float(weight.sum())
    trees, smooth = _trees(view, kernels, weight), _smooth(rows, view, rest, weight)
    return Model(factors, mean, trees, smooth, alone=False)


def _likeliest(rows: Rows, view: View, start: Floats, known: Floats) -> tuple[Rest, Floats, _Mode]:
    """The most likely smooth part, the rows' covariance [n, n] with it, noise and `known`, and the mode under these."""

    def tried(rest: Rest) -> tuple[Rest, Floats, _Mode]:
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


def _left_out(rows: Rows, mode: _Mode, prior: Floats) -> tuple[Floats, Floats]:
    """Leave-one-out predictions [n], and their standard deviations (Rasmussen and Williams 2006, section 5.4.2)."""
    slope = dependence_of(rows.terms, mode.factors) * CONSTANTS
    precision = np.diag(np.linalg.inv(prior + slope @ slope.T))
    return rows.target - mode.weight / precision, 1.0 / np.sqrt(precision)


def _clipped(measured: Floats, rows: Rows, mode: _Mode, prior: Floats) -> Floats:
    """`measured` targets [n], clipped near their leave-one-out predictions."""
    predicted, deviation = _left_out(rows, mode, prior)
    deviations, least = (_SURPRISE_OF_CHOICE, _LEAST_OF_CHOICE) if rows.chosen else (_SURPRISE, _LEAST_SURPRISE)
    most = np.maximum(deviations * deviation, least)
    return np.clip(measured, predicted - most, predicted + most)


def _served_part(measured: Floats, rows: Rows, start: Floats, mode: _Mode, prior: Floats) -> float:
    """The part of the correction whose leave-one-out predictions err least.

    Less than all is served only where it errs less by more than a standard error: rows far from one another, as a plan
    chooses them, predict each other worse than they predict what is between them.
    """
    physics = np.empty(len(measured))
    fill_scaled(rows.terms, start, physics)
    uncorrected = np.log(physics)
    correction = _left_out(rows, mode, prior)[0] - uncorrected
    errors = np.abs(np.expm1(uncorrected + np.array(_PARTS)[:, None] * correction - measured))
    more = errors - errors[-1]
    surely = more.mean(axis=1) + more.std(axis=1) / np.sqrt(len(measured))
    return _PARTS[int(np.argmin(surely))]


def _solved(rows: Rows, start: Floats, prior: Floats) -> _Mode:
    """The mode by Gauss-Newton, whose steps are shortened until the loss falls."""
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
        for _ in range(_SHORTENINGS):
            trial = np.clip(point + step, low, high)
            if (tried := judged(trial))[0] < loss:
                point, (loss, _, weight) = trial, tried
                break
            step = _SHORTER * step
        if before - loss < _ENOUGH:
            break
    slope = dependence_of(rows.terms, np.exp(point))
    _, volume = np.linalg.slogdet(slope.T @ cho_solve(factor, slope) + tightness)
    return _Mode(loss + float(np.log(np.diag(factor[0])).sum()) + 0.5 * float(volume), np.exp(point), weight)


def _trees(view: View, kernels: Kernels, weight: Floats) -> Trees:
    """The shared trees, scaled, with leaf values corrected by the rows in each leaf and its neighbours."""
    held = np.array([np.bincount(leaf, weight, LEAVES) for leaf in view.leaf.T]).reshape(-1, LEAVES)
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
