"""Fitting of the cell of one operator in one dtype to its training samples (models.per_operator).

A GPU with enough rows has constants and trees of its own. The shared model is fitted to all GPUs with equal weight of
each, and to all dtypes of an operator of which each has few configurations; on other GPUs it may do more harm than
good, so each constant is carried as far as architectures agree on it, and its trees with the strength that errs least
on held-out architectures. Few rows calibrate the prediction of their GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import copy_context
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from app.bands.groups import S_UNSEEN
from app.coefficients import Coefficients
from app.ops import OPS
from app.predictors.auto.operators.learning.calibration import Rows, calibrate
from app.predictors.auto.operators.learning.distillation import distilled
from app.predictors.auto.operators.models.corrections import NO_TREND, NOTHING, Axes, fitted_trend, without_parts
from app.predictors.auto.operators.models.features import EAGER, ROUTER_CLASS, SHAPE_FEATURES
from app.predictors.auto.operators.models.gaussian_process import Kernels, Places, chooses
from app.predictors.auto.operators.models.per_operator import (
    NOTHING_CARRIED,
    Cell,
    GpuModel,
    Model,
    Strengths,
    log_correction,
)
from app.predictors.auto.operators.models.training_samples import Samples, together
from app.predictors.fitted_once import once
from app.predictors.operator_digests import feature_digests
from app.predictors.physics.analytic_model import ANY_TILE
from app.predictors.physics.physics_fit import FACTORS, NEUTRAL, fitted_factors
from app.predictors.trees.boosted import NO_TREES, Growth, boosted
from app.predictors.trees.growing import STEPS
from app.tables.arrays import Floats, Ints

_FITTED = Coefficients("learning")

# Least rows of a GPU for a model of its own; with fewer it corrects another.
ENOUGH = 400
# Rows per tree, the same of eager rows, and the bounds of the number of trees, also by `few_configurations`.
ROWS_PER_TREE, EAGER_ROWS_PER_TREE, LEAST_TREES, MOST_TREES = 4, 8, 80, {False: 4000, True: 2000}
# Share of features per tree of a GPU's own model.
OWN_FEATURES = _FITTED.number("own_features")
# How far off, in log space, a row of CUDA graphs pulls trees in proportion: throttled runs, and kernels that no
# feature tells, would draw the mean of their neighbours to them. A GPU's own trees end at a tenth of it, near the
# median of rows alike: where a clock or a kernel changes by turns, times gather in two places, and their mean lies in
# neither.
CLEAR, SETTLES = _FITTED.each("clear", "settles")
# Over these trees the learning rate rises from 0.3 to 1.7 of its mean, which costs nothing and is worth twice the trees
# (docs/explanation/notebook.md).
RISES = _FITTED.number("rises")
# Rows of graphs also count by their relative error, which is what answers are judged by: where times gather in two
# places, the shorter is the better answer, also if it is somewhat rarer.
_OWN_EAGER = Growth(LEAST_TREES, features=OWN_FEATURES)
_OWN_OF_GRAPHS = replace(_OWN_EAGER, clear=CLEAR, settles=SETTLES, relative=True, rises=RISES, steps=STEPS // 9)
# The same of a model of all GPUs, by whether the rows are eager.
_OF_ALL = {
    True: Growth(LEAST_TREES),
    False: Growth(LEAST_TREES, clear=CLEAR, relative=True, steps=_OWN_OF_GRAPHS.steps),
}
# Most rows per GPU of the shared model, and its trees.
SHARED_ROWS, SHARED_TREES = 4000, 200
# Least rows of a GPU for a calibration without the shared model.
LEAST_ALONE = 24
# Most rows per GPU, and trees, of the models that the strength is chosen with.
TRIAL_ROWS, TRIAL_TREES = 800, 80
# Candidate strengths: the part of the trees' correction that is carried to other architectures.
STRENGTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
# Least architectures to carry anything to another: two agree by chance.
LEAST_ARCHITECTURES = 3


class Shared(NamedTuple):
    """A model of all GPUs together, and its strength on another architecture."""

    model: Model
    strength: Strengths


def renews_shared(samples: Samples, before: Cell | None) -> bool:
    """Whether `samples` have every GPU that the cell `before` learned from."""
    return before is None or {samples.names[code] for code in np.unique(samples.gpu)} >= set(before.own)


def learn(samples: Samples, before: Cell | None, shared: Shared | None) -> Cell:
    """The cell fitted to `samples`; models of other GPUs in `before` stay, and its shared model where `shared` is None.

    `shared` was fitted to these rows too. GPUs are fitted in as many threads as joblib's `parallel_config` says: one
    by default.
    """
    from joblib import Parallel, delayed  # noqa: PLC0415  (serving never fits)

    old, parts = before or Cell(), {name: (key, rows) for name, key, rows in samples.by_gpu()}
    shape = samples.features[:SHAPE_FEATURES]
    low, high = shape.min(axis=1).astype(np.float64), shape.max(axis=1).astype(np.float64)
    if before is not None:
        low, high = np.minimum(low, old.low), np.maximum(high, old.high)
    architecture = {**old.architecture, **{name: key for name, (key, _) in parts.items()}}
    own = {gpu: model for gpu, model in old.own.items() if gpu not in parts}
    cell = Cell(own, architecture, *(shared or (old.shared, old.strength)), low, high)
    enough = LEAST_ALONE if shared is not None else ENOUGH
    # GPUs of few rows come last: they correct the models of the others, their siblings among them.
    for few in (False, True):
        chosen = {name: part for name, part in parts.items() if (len(part[1].latency_s) < enough) is few}
        fits = (
            delayed(copy_context().run)(_own, rows, cell.others(name, key), cell.shared, enough=enough)
            for name, (key, rows) in chosen.items()
        )
        cell = replace(cell, own={**cell.own, **dict(zip(chosen, Parallel()(fits), strict=True))})
    return cell


def _own(samples: Samples, others: GpuModel, shared: Model | None, *, enough: int) -> Model:
    """The model of one GPU, which stands alone if it has `enough` rows."""
    if len(samples.latency_s) >= ENOUGH:
        return _with_isolated(samples.of_one_gpu())
    if len(samples.latency_s) >= enough:
        # The shared model's residuals on its own training rows say nothing of other rows.
        return corrected(samples, others._replace(members=()), None, alone=True)
    return corrected(samples, others, shared)


def calibrated(samples: Samples, before: Cell) -> dict[str, tuple[Model, str]]:
    """Corrections of `before` for the GPUs of these samples that have no model of their own, with architecture keys."""
    return {
        name: (corrected(rows, before.others(name, key), before.shared), key)
        for name, key, rows in samples.by_gpu()
        if not before.stands_alone(name)
    }


@once
def _with_isolated(samples: Samples) -> Model:
    """The model of a GPU of many rows, with additional trees for the isolated ones.

    Trees are fitted to the usual rows; then more to the residuals of the isolated rows, whose first split keeps them
    from all other rows.
    """
    usual, n = np.flatnonzero(~samples.isolated), int(samples.isolated.sum())
    if n == 0 or len(usual) < ENOUGH:
        return fitted(samples)
    model = fitted(samples.of(usual))
    features = np.ascontiguousarray(samples.features)
    left = samples.residual(model.factors) - model.log_correction(features)
    growth = replace(growth_of(n, samples.kind, eager=False), first=ROUTER_CLASS, places=1)
    grown = boosted(features, np.where(samples.isolated, left, 0.0), np.ones(len(left)), growth)
    return model._replace(trees=model.trees.and_then(grown))


def fitted(samples: Samples, shared: tuple[int, Floats] | None = None) -> Model:
    """Constants of the physics or a trend, and trees fitted to the log residuals.

    `shared`, of a model of all GPUs: its number of trees, and the weights [n] of the rows.
    """
    alone = shared is None
    trees, mass = shared or (0, np.ones(len(samples.latency_s)))
    features, axes, op = np.ascontiguousarray(samples.features), Axes.of(samples.kind), OPS[samples.kind]
    trend = fitted_trend(features, samples.latency_s, axes) if alone else NO_TREND
    factors = NEUTRAL
    if trend is NO_TREND:
        streams, capped = op.traffic == "streams", alone and op.waits
        factors = fitted_factors(samples.terms, samples.latency_s, mass, streams=streams, capped=capped)
    residual = samples.residual(factors) - trend.sum(features)
    features = without_parts(features, axes)
    mean = float(np.average(residual, weights=mass))
    eager = bool(samples.features[EAGER].mean() > 0.5)
    growth = growth_of(len(residual), samples.kind, eager=eager) if alone else replace(_OF_ALL[eager], trees=trees)
    target = residual - mean
    grown = boosted(features, target, mass, growth)
    blank = samples.blank[0][:, samples.blank[1] == samples.gpu[0]]
    if alone and not eager and blank.size:
        room = growth_of(len(target) + blank.shape[1], samples.kind, eager=False)
        grown = distilled(features, target, grown, room, without_parts(blank, axes))
    return Model(factors, mean, grown, NOTHING, alone, _tile(samples), trend)


def growth_of(rows: int, kind: int, *, eager: bool) -> Growth:
    """How the trees of a GPU's own model grow, by its number of rows and the operator.

    Where more trees are wanted than there may be, each learns more, by the root of how many fewer they are: so they err
    least on held-out configurations (docs/explanation/notebook.md). Of few configurations they would learn just these.
    """
    growth, per_tree = (_OWN_EAGER, EAGER_ROWS_PER_TREE) if eager else (_OWN_OF_GRAPHS, ROWS_PER_TREE)
    ideal, few = max(rows // per_tree, LEAST_TREES), OPS[kind].few_configurations
    trees = min(ideal, MOST_TREES[few])
    return replace(growth, trees=trees, rate=growth.rate * (1.0 if few else (ideal / trees) ** 0.5))


def corrected(samples: Samples, others: GpuModel, shared: Model | None, *, alone: bool = False) -> Model:
    """The calibration of `others` to few rows of a GPU; `alone`: `others` has no models, only constants."""
    n = len(samples.latency_s)
    if n > ENOUGH:
        samples = samples.of(np.random.default_rng(0).permutation(n)[:ENOUGH])
    target = np.log(samples.latency_s) - log_correction(others, samples.features)
    places = Places.of(samples.kind) if alone else Places.of_few(samples.kind)
    chosen, predicted = chooses(samples.kind), bool(others.members)
    rows = Rows(samples.terms, target, samples.features, places, chosen, predicted)
    return calibrate(rows, others.factors, kernels_of(shared))._replace(alone=alone, tile=_tile(samples))


def _tile(samples: Samples) -> int:
    """The single tile of these rows; ANY_TILE where GPUs differ."""
    return int(samples.tile[0]) if (samples.tile == samples.tile[0]).all() else ANY_TILE


def kernels_of(shared: Model | None) -> Kernels:
    """Kernels of the Gaussian process, by the trees of the shared model."""
    return Kernels.of(NO_TREES if shared is None else shared.trees)


def shared_by(parts: Sequence[Samples]) -> Shared | None:
    """The shared model of samples of one operator, a part per dtype; None of a single GPU."""
    codes = np.unique(np.concatenate([np.empty(0, dtype=np.intp), *(part.gpu for part in parts)])).tolist()
    if len(codes) < 2:
        return None
    return Shared(_shared(parts, codes, SHARED_ROWS, SHARED_TREES), _strength(parts, codes))


def _shared(parts: Sequence[Samples], codes: Sequence[int], most: int, trees: int) -> Model:
    """The shared model of the GPUs `codes`, each with equal weight in each part and at most `most` rows."""
    kept = [one for code in codes for one in _some(parts, code, most)]
    weight = np.concatenate([np.full(len(one.latency_s), 1.0 / len(one.latency_s)) for one in kept])
    return fitted(together(kept), (trees, weight))


def _some(parts: Sequence[Samples], code: int, most: int) -> list[Samples]:
    """At most `most` rows of a GPU of each part that has some, drawn at random with a fixed seed.

    Of an operator of few configurations the same are drawn on all GPUs, so that trees see what sets GPUs apart and not
    what sets their layers apart.
    """
    every = ((part, np.flatnonzero(part.gpu == code)) for part in parts)
    return [part.of(drawn(part, rows)[:most]) for part, rows in every if len(rows)]


def drawn(part: Samples, rows: Ints) -> Ints:
    """`rows` of `part` in the order in which they are drawn."""
    if OPS[part.kind].few_configurations:
        return rows[np.argsort(feature_digests(part.features[:SHAPE_FEATURES, rows]), kind="stable")]
    return np.random.default_rng(0).permutation(rows)


def _strength(parts: Sequence[Samples], codes: Sequence[int]) -> Strengths:
    """The part of each constant and of the trees that is carried to another architecture.

    Of the trees the part with the least error on held-out architectures; none for operators that move bytes: on large
    rows of a held-out GPU they did worse than none (docs/explanation/notebook.md). For those that only stream, siblings
    get no more either, as bandwidth explains the rest. Nothing with fewer than LEAST_ARCHITECTURES.
    """
    first, traffic = parts[0], OPS[parts[0].kind].traffic
    architectures = {code: first.architectures[code] or first.names[code] for code in codes}
    of_architecture = [
        [code for code in codes if architectures[code] == architecture]
        for architecture in sorted(set(architectures.values()))
    ]
    if len(of_architecture) < LEAST_ARCHITECTURES:
        return NOTHING_CARRIED
    some = {code: _some(parts, code, TRIAL_ROWS) for code in codes}
    constants = [
        np.mean([_constants(rows.of_one_gpu()) for code in architecture for rows in some[code]], axis=0)
        for architecture in of_architecture
    ]
    carried = agreed(np.array(constants))
    if traffic != "computes":
        return Strengths(carried, 0.0, limits_siblings=traffic == "streams")
    errors = []
    for architecture in of_architecture:
        model = _shared(parts, [code for code in codes if code not in architecture], TRIAL_ROWS, TRIAL_TREES)
        for rows in (rows for code in architecture for rows in some[code]):
            full = log_correction(GpuModel(model.factors, ((model, 1.0),), S_UNSEEN), rows.features)
            left = rows.residual(model.factors**carried)
            errors.append([np.abs(np.expm1(part * full - left)).mean() for part in STRENGTHS])
    return Strengths(carried, STRENGTHS[np.mean(errors, axis=0).argmin()])


@once
def _constants(samples: Samples) -> Floats:
    """Logarithms of the constants fitted to one GPU alone, float64 [FACTORS]."""
    streams = OPS[samples.kind].traffic == "streams"
    return np.log(fitted_factors(samples.terms, samples.latency_s, streams=streams))


def agreed(constants: Floats) -> Floats:
    """The part of each constant that is carried to a further architecture, float64 [FACTORS].

    Mean^2 / (mean^2 + d^2), d^2 the mean square difference between two architectures; `constants`, float64
    [architectures, FACTORS], are logarithms. Least squares would take the variance of the mean for d^2, but a constant
    too large costs more than one too small, and that did worse on held-out GPUs.
    """
    shared, differing = constants.mean(axis=0) ** 2, 2.0 * constants.var(axis=0, ddof=1)
    part: Floats = np.divide(shared, shared + differing, out=np.zeros(FACTORS), where=shared > 0.0)
    return part
