"""What is learned of one operator in one dtype: how its measured times deviate from the physics.

Of the physics (app.predictors.operators.time) the constants, and of what it then misses a model over the features of
app.predictors.operators.features. A GPU with enough rows has a model of its own. One of the same make (architecture and
kind of memory) borrows it. Others get `shared`, learned from all GPUs with equal weight: of each constant as much as
makes agree on, of its trees what did best when each make was held out in turn, as off their GPUs either may do more
harm than good. A GPU with few rows corrects what it would get without them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from app.predictors.intervals import S_CALIBRATED, S_SEEN, S_SIBLING, S_UNSEEN
from app.predictors.operators.boosting import NO_TREES, Growth, Trees, boosted
from app.predictors.operators.calibration import Rows, calibrate
from app.predictors.operators.constants import FACTORS, NEUTRAL, fill_scaled, fitted_factors
from app.predictors.operators.distillation import taught_again
from app.predictors.operators.features import EAGER, FEATURES, ODDITY
from app.predictors.operators.process import Kernels, Places
from app.predictors.operators.smooth import NOTHING, Smooth
from app.predictors.operators.time import ANY_TILE

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Ints = NDArray[np.intp]
Bools = NDArray[np.bool_]

# Rows of a GPU from which a model stands by itself; with fewer it corrects another.
ENOUGH = 400
# Rows per tree, those of eager rows, and the bounds of how many trees a model has.
ROWS_PER_TREE, EAGER_ROWS_PER_TREE, LEAST_TREES, MOST_TREES = 4, 8, 80, 2000
# Part of the features that each tree of a GPU's own model sees: chosen on configurations and sizes held out.
OWN_FEATURES = 0.7
# How far off, in log space, a row of CUDA graphs pulls trees in proportion: throttled runs, and kernels that no feature
# tells, would draw the mean of their neighbours to them. Of eager rows squared error does better, in whole models of
# GPUs left out (docs/accuracy.md). A GPU's own trees end at a tenth of it, near the median of rows alike: where a clock
# or a kernel changes by turns, times gather in two places, and their mean lies in neither.
CLEAR, SETTLES = 0.1, 0.1
# There rows also count by their relative error, which is what answers are judged by: where times gather in two places,
# the shorter is the better answer, also if it is somewhat rarer.
_OWN_EAGER = Growth(MOST_TREES, features=OWN_FEATURES)
_OWN_OF_GRAPHS = replace(_OWN_EAGER, clear=CLEAR, settles=SETTLES, relative=True)
# Where MOST_TREES are fewer than the rows would bear, each takes a larger step instead: rows from which on, and the
# rate's bounds.
ROWS_OF_RATE, RATE, MOST_RATE = 27_000, 0.1, 0.2
# Rows of each GPU that the shared model sees at most, and its trees.
SHARED_ROWS, SHARED_TREES = 4000, 200
# Rows of a GPU that may do without others.
LEAST_ALONE = 24
# The same where only the strength is to be found.
TRIAL_ROWS, TRIAL_TREES = 800, 80
# GPUs of the same make that answer for one without rows of its own.
MOST_KIN = 3
# Parts of what trees say that may be carried to other makes.
STRENGTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
# Makes from which anything may be carried to another: two agree by chance.
LEAST_MAKES = 3


class Strengths(NamedTuple):
    """How much of a shared model counts on a GPU of a make that is none of its own: of each constant, of its trees.

    `kin`: whether a model counts as little on other GPUs of its own make, where else it holds in full.
    """

    factors: Floats
    trees: float
    kin: bool = False


NOTHING_CARRIED, ALL_CARRIED = Strengths(np.zeros(FACTORS), 0.0), Strengths(np.ones(FACTORS), 1.0)


class Model(NamedTuple):
    """Physics under `factors` [FACTORS], and log(measured / that) = mean + trees + smooth.

    Trees of many rows, both of few. `alone`: by themselves, else on top of what others taught. `tile`: the only one
    that the GPU's kernels have, a row of CANDIDATES, or ANY_TILE.
    """

    factors: Floats
    mean: float
    trees: Trees
    smooth: Smooth
    alone: bool
    tile: int = ANY_TILE


class Recipe(NamedTuple):
    """What answers for a GPU: physics with `tile` under `factors`, corrected by models with weights.

    `situation` is a code into SITUATIONS.
    """

    factors: Floats
    members: tuple[tuple[Model, float], ...]
    situation: int
    tile: int = ANY_TILE


@dataclass(frozen=True, slots=True)
class Samples:
    """Measured rows of one cell, n of them.

    features   float32 [columns, n] of app.predictors.operators.features
    terms      float64 [TERMS, n] of app.predictors.operators.time
    latency_s  float64 [n]
    gpu        int [n], code into `names` and `makes`
    tile       int [n], the only one that its GPU's kernels have, or ANY_TILE
    places     where the smooth rest of few rows looks, and `own_places` that of a GPU that stands by itself
    moves      whether the operator does little but move bytes
    streams    whether it only moves them through, once
    waits      whether much of its time is waiting that no term of the physics names, and any may stand in for
    chosen     whether a library chooses among algorithms for the operator
    apart      bool [n], rows that tell of no other layers, whose kernels or load were others
    blank      float32 [columns, q], features of what was not measured, and of which GPU, int [q]
    """

    features: Singles
    terms: Floats
    latency_s: Floats
    gpu: Ints
    tile: Ints
    names: Sequence[str]
    makes: Sequence[str]
    places: Places
    own_places: Places
    moves: bool
    streams: bool
    waits: bool
    chosen: bool
    apart: Bools
    blank: tuple[Singles, Ints] = (np.empty((FEATURES, 0), np.float32), np.empty(0, np.intp))

    def of(self, rows: Ints) -> Samples:
        """The rows given."""
        terms = np.ascontiguousarray(self.terms[:, rows])
        kept = {name: getattr(self, name)[rows] for name in ("latency_s", "gpu", "tile", "apart")}
        return replace(self, features=self.features[:, rows], terms=terms, **kept)

    def residual(self, factors: Floats) -> Floats:
        """log(measured / physics under `factors`), [n]."""
        physics = np.empty(len(self.latency_s))
        fill_scaled(self.terms, factors, physics)
        return np.log(self.latency_s / physics)


@dataclass(frozen=True)
class Cell:
    """Models of one operator in one dtype.

    own       GPU id -> its model
    make      GPU id -> its make
    shared    model of all GPUs together; None where there is only one
    strength  of `shared` on a GPU of a make that is none of theirs
    low, high float64 [columns], range of the features that do not depend on the GPU
    lent      whether it was learned from another dtype, and only told rows of its own
    lenders   GPU id -> its model of that other dtype, on top of which those rows are
    """

    own: Mapping[str, Model] = field(default_factory=dict)
    make: Mapping[str, str] = field(default_factory=dict)
    shared: Model | None = None
    strength: Strengths = NOTHING_CARRIED
    low: Floats = field(default_factory=lambda: np.empty(0))
    high: Floats = field(default_factory=lambda: np.empty(0))
    lent: bool = False
    lenders: Mapping[str, Model] = field(default_factory=dict)

    @classmethod
    def empty(cls, columns: int) -> Self:
        """Nothing learned, of a range that holds everything."""
        return cls(low=np.full(columns, -np.inf), high=np.full(columns, np.inf))

    def as_lent(self, without: Collection[str]) -> Cell:
        """The same for another dtype, without what the GPUs `without` taught."""
        own = {gpu: model for gpu, model in self.own.items() if gpu not in without}
        return replace(self, own=own, lent=True, lenders={gpu: model for gpu, model in own.items() if model.alone})

    def recipe(self, gpu: str, make: str) -> Recipe:
        """What answers for a GPU."""
        mine = self.own.get(gpu)
        if mine is not None and mine.alone:
            return Recipe(mine.factors, ((mine, 1.0),), S_SEEN, mine.tile)
        others = self.others(gpu, make)
        if mine is not None:
            return Recipe(mine.factors, (*others.members, (mine, 1.0)), S_CALIBRATED, mine.tile)
        return others

    def others(self, gpu: str, make: str) -> Recipe:
        """What answers for a GPU without rows of its own."""
        if gpu in self.lenders:
            lender = self.lenders[gpu]
            return Recipe(lender.factors, ((lender, 1.0),), S_SIBLING, lender.tile)
        known = {**self.own, **self.lenders}.items()
        kin = [model for name, model in known if self.make[name] == make and name != gpu and model.alone]
        kin = kin[:MOST_KIN]
        if kin and make:
            carried = self.strength if self.strength.kin else ALL_CARRIED
            factors = np.exp(carried.factors * np.mean([np.log(model.factors) for model in kin], axis=0))
            members = tuple((model, carried.trees / len(kin)) for model in kin) if carried.trees else ()
            alike = {model.tile for model in kin}
            return Recipe(factors, members, S_SIBLING, alike.pop() if len(alike) == 1 else ANY_TILE)
        tile = self._tile_of_chip(gpu, make)
        if self.shared is None:
            return Recipe(NEUTRAL, (), S_UNSEEN, tile)
        members = ((self.shared, self.strength.trees),) if self.strength.trees else ()
        return Recipe(self.shared.factors**self.strength.factors, members, S_UNSEEN, tile)

    def _tile_of_chip(self, gpu: str, make: str) -> int:
        """The only tile that other GPUs of an architecture have: kernels are built for it, whatever the memory."""
        chip = make.partition("/")[0]
        alike = {name for name, of in self.make.items() if chip and of.partition("/")[0] == chip and name != gpu}
        tiles = {model.tile for name, model in self.own.items() if name in alike and model.alone}
        return tiles.pop() if len(tiles) == 1 else ANY_TILE

    def with_models(self, models: Mapping[int, Model]) -> Cell:
        """The same with other models in their places, by the `id` of each."""
        own = {gpu: models[id(model)] for gpu, model in self.own.items()}
        return replace(self, own=own, shared=None if self.shared is None else models[id(self.shared)])

    def tile(self, gpu: str, make: str) -> int:
        """The only tile that others say a GPU's kernels have; ANY_TILE where they do not."""
        return self.others(gpu, make).tile

    def state(self) -> dict[str, Any]:
        """As plain containers of arrays."""
        models = {name: _model_state(model) for name, model in self.own.items()}
        shared = None if self.shared is None else _model_state(self.shared)
        told = {"own": models, "make": dict(self.make), "shared": shared, "strength": list(self.strength)}
        return told | {"low": self.low, "high": self.high}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """The inverse of `state`."""
        own = {name: _model_from(model) for name, model in state["own"].items()}
        shared = None if state["shared"] is None else _model_from(state["shared"])
        return cls(own, dict(state["make"]), shared, Strengths(*state["strength"]), state["low"], state["high"])


def _model_state(model: Model) -> dict[str, Any]:
    told = {"factors": model.factors, "mean": model.mean, "alone": model.alone, "tile": model.tile}
    return told | {"trees": model.trees.state(), "smooth": model.smooth.state()}


def _model_from(state: Mapping[str, Any]) -> Model:
    return Model(
        state["factors"],
        float(state["mean"]),
        Trees.from_state(state["trees"]),
        Smooth.from_state(state["smooth"]),
        bool(state["alone"]),
        int(state.get("tile", ANY_TILE)),  # what was learned before tiles were told has the usual ones
    )


def learn(samples: Samples, shape_features: int, before: Cell | None, usual: Samples | None) -> Cell:
    """The cell that these samples teach; what `before` knows of other GPUs stays.

    `usual`: the same with the usual tiles, for what is carried to a GPU whose tile nobody knows.
    """
    codes = np.unique(samples.gpu).tolist()
    names = {samples.names[code] for code in codes}
    old = before or Cell()
    shape = samples.features[:shape_features]
    low, high = shape.min(axis=1).astype(np.float64), shape.max(axis=1).astype(np.float64)
    if before is not None and len(old.low) == len(low):
        low, high = np.minimum(low, old.low), np.maximum(high, old.high)
    shared, strength = old.shared, old.strength
    if len(codes) > 1 and names >= set(old.own):
        carried = samples if usual is None else usual
        shared, strength = _shared(carried, codes, SHARED_ROWS, SHARED_TREES), _strength(carried, codes)
    make = {**old.make, **{samples.names[code]: samples.makes[code] for code in codes}}
    base = Cell({gpu: model for gpu, model in old.own.items() if gpu not in names}, make, shared, strength, low, high)
    own = dict(base.own)
    for code in codes:
        rows = samples.of(np.flatnonzero(samples.gpu == code))
        own[samples.names[code]] = _own(rows, code, base, taught=shared is not old.shared)
    return Cell(own, make, shared, strength, low, high)


def _own(samples: Samples, code: int, base: Cell, *, taught: bool) -> Model:
    """The model of one GPU; `taught`: the shared model has seen these very rows."""
    if len(samples.latency_s) >= ENOUGH:
        return _with_apart(samples)
    others = base.others(samples.names[code], samples.makes[code])
    if taught and len(samples.latency_s) >= LEAST_ALONE:
        # What a model leaves of rows that taught it says nothing of others.
        return corrected(samples, others._replace(members=()), None, alone=True)
    return corrected(samples, others, base.shared)


def calibrated(samples: Samples, before: Cell) -> Cell:
    """`before` with small corrections for the GPUs of these samples that have no model of their own."""
    own, make = dict(before.own), dict(before.make)
    for code in np.unique(samples.gpu).tolist():
        name = samples.names[code]
        if name not in own or not own[name].alone or name in before.lenders:
            rows = samples.of(np.flatnonzero(samples.gpu == code))
            own[name] = corrected(rows, before.others(name, samples.makes[code]), before.shared)
            make[name] = samples.makes[code]
    return replace(before, own=own, make=make)


def _with_apart(samples: Samples) -> Model:
    """The model of a GPU of many rows: those apart do not teach the others, only themselves what the others miss.

    They follow the others' trees with trees of their own, whose first question keeps them from all other rows.
    """
    usual, n = np.flatnonzero(~samples.apart), int(samples.apart.sum())
    if n == 0 or len(usual) < ENOUGH:
        return fitted(samples, alone=True)
    model = fitted(samples.of(usual), alone=True)
    features = np.ascontiguousarray(samples.features)
    left = samples.residual(model.factors) - model.mean - model.trees.sum(features)
    growth = replace(_OWN_OF_GRAPHS, trees=_trees_of(n, eager=False), rate=rate_of(n), first=ODDITY)
    grown = boosted(features, np.where(samples.apart, left, 0.0), np.ones(len(left)), growth)
    return model._replace(trees=model.trees.and_then(grown))


def fitted(samples: Samples, *, alone: bool, trees: int | None = None, weight: Floats | None = None) -> Model:
    """Physics with its constants, and trees on what it misses."""
    mass = np.ones(len(samples.latency_s)) if weight is None else weight
    capped = alone and samples.waits
    factors = fitted_factors(samples.terms, samples.latency_s, weight=mass, streams=samples.streams, capped=capped)
    residual = samples.residual(factors)
    mean = float(np.average(residual, weights=mass))
    eager = bool(samples.features[EAGER].mean() > 0.5)
    count = _trees_of(len(residual), eager=eager) if trees is None else trees
    growth = Growth(count, clear=np.inf if eager else CLEAR)
    if alone:
        own = _OWN_EAGER if eager else _OWN_OF_GRAPHS
        growth = replace(own, trees=count, rate=rate_of(len(residual)))
    features, target = np.ascontiguousarray(samples.features), residual - mean
    grown = boosted(features, target, mass, growth)
    blank = samples.blank[0][:, samples.blank[1] == samples.gpu[0]]
    if alone and not eager and blank.size:
        room = replace(growth, trees=_trees_of(len(target) + blank.shape[1], eager=False))
        grown = taught_again(features, target, grown, room, blank)
    return Model(factors, mean, grown, NOTHING, alone, _tile(samples))


def _trees_of(rows: int, *, eager: bool) -> int:
    """How many trees rows bear."""
    return min(max(rows // (EAGER_ROWS_PER_TREE if eager else ROWS_PER_TREE), LEAST_TREES), MOST_TREES)


def rate_of(rows: int) -> float:
    """How much of what is left each tree of a GPU's own model takes."""
    return min(max(RATE * rows / ROWS_OF_RATE, RATE), MOST_RATE)


def corrected(samples: Samples, others: Recipe, shared: Model | None, *, alone: bool = False) -> Model:
    """What few rows of a GPU teach on top of what `others` did, or `alone`, where `others` has no models."""
    n = len(samples.latency_s)
    if n > ENOUGH:
        samples = samples.of(np.random.default_rng(0).permutation(n)[:ENOUGH])
    target = np.log(samples.latency_s) - answered(others, samples.features)
    places = samples.own_places if alone else samples.places
    rows = Rows(samples.terms, target, samples.features, places, samples.chosen)
    return Model(*calibrate(rows, others.factors, kernels_of(shared)), alone, _tile(samples))


def _tile(samples: Samples) -> int:
    """The only tile of these rows; ANY_TILE where GPUs differ."""
    return int(samples.tile[0]) if (samples.tile == samples.tile[0]).all() else ANY_TILE


def kernels_of(shared: Model | None) -> Kernels:
    """What rows have in common by the model of all GPUs."""
    return Kernels.of(NO_TREES if shared is None else shared.trees)


def _shared(samples: Samples, codes: Sequence[int], most: int, trees: int) -> Model:
    """One model of all GPUs `codes`, each with the same weight and at most `most` rows."""
    kept = [_some(samples, code, most) for code in codes]
    weight = np.concatenate([np.full(len(part), 1.0 / len(part)) for part in kept])
    return fitted(samples.of(np.concatenate(kept)), alone=False, trees=trees, weight=weight)


def _some(samples: Samples, code: int, most: int) -> Ints:
    """At most `most` rows of a GPU, at random but always the same."""
    rows = np.flatnonzero(samples.gpu == code)
    return np.random.default_rng(0).permutation(rows)[:most]


def _strength(samples: Samples, codes: Sequence[int]) -> Strengths:
    """Of constants as much as their makes agree on, and of trees the part with the least error on makes held out.

    Of an operator that moves bytes no trees: on large rows of a GPU held out they did worse than none
    (docs/accuracy.md). One that only streams tells its own make no more, as bandwidth tells the rest. Of fewer makes
    than LEAST_MAKES nothing.
    """
    makes = {code: samples.makes[code] or samples.names[code] for code in codes}
    of_make = [[code for code in codes if makes[code] == make] for make in sorted(set(makes.values()))]
    if len(of_make) < LEAST_MAKES:
        return NOTHING_CARRIED
    some = {code: samples.of(_some(samples, code, TRIAL_ROWS)) for code in codes}
    carried = agreed(np.array([np.mean([_constants(some[code]) for code in make], axis=0) for make in of_make]))
    if samples.moves:
        return Strengths(carried, 0.0, kin=samples.streams)
    errors = []
    for make in of_make:
        model = _shared(samples, [code for code in codes if code not in make], TRIAL_ROWS, TRIAL_TREES)
        for rows in (some[code] for code in make):
            full = answered(Recipe(model.factors, ((model, 1.0),), S_UNSEEN), rows.features)
            left = rows.residual(model.factors**carried)
            errors.append([np.abs(np.expm1(part * full - left)).mean() for part in STRENGTHS])
    return Strengths(carried, STRENGTHS[np.mean(errors, axis=0).argmin()])


def _constants(samples: Samples) -> Floats:
    """Logarithms of the constants that fit one GPU by itself, [FACTORS]."""
    return np.log(fitted_factors(samples.terms, samples.latency_s, streams=samples.streams))


def agreed(constants: Floats) -> Floats:
    """The part of each constant that is carried to a further make, [FACTORS].

    Mean^2 / (mean^2 + d^2) over makes, d^2 the mean square difference between two of them; `constants` [makes, FACTORS]
    are logarithms. Least squares would take the variance of the mean for d^2, but a constant too large costs more than
    one too small, and that did worse on GPUs held out.
    """
    shared, differing = constants.mean(axis=0) ** 2, 2.0 * constants.var(axis=0, ddof=1)
    part: Floats = np.divide(shared, shared + differing, out=np.zeros(FACTORS), where=shared > 0.0)
    return part


def answered(recipe: Recipe, features: Singles) -> Floats:
    """The log correction by the recipe's models of rows with these features, [n]."""
    total = np.zeros(features.shape[1])
    for model, weight in recipe.members:
        total += weight * (model.mean + model.trees.sum(features) + model.smooth.sum(features))
    return total
