"""What is learned of one operator in one dtype: how its measured times deviate from the physics.

A model follows log(measured / physics) (app.predictors.operator_time) over the features of
app.predictors.operator_features. A GPU with enough rows has a model of its own. One of the same make (architecture and
kind of memory) borrows it. Others get `shared`, learned from all GPUs with equal weight, at the strength that did best
when each GPU was held out in turn: off their GPUs learned models may do more harm than good. A GPU with few rows
corrects what it would get without them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from app.predictors.boosting import Growth, Trees, boosted
from app.predictors.intervals import S_CALIBRATED, S_SEEN, S_SIBLING, S_UNSEEN

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Ints = NDArray[np.intp]

# Rows of a GPU from which a model stands by itself; with fewer it corrects another.
ENOUGH = 1000
# Rows of each GPU that the shared model sees at most, and its trees.
SHARED_ROWS, SHARED_TREES = 4000, 200
# The same where only the strength is to be found.
TRIAL_ROWS, TRIAL_TREES = 800, 80
STRENGTHS = (0.0, 0.25, 0.5, 0.75, 1.0)


class Model(NamedTuple):
    """log(measured / physics) = mean + trees; `alone`: by itself, else on top of what others taught."""

    mean: float
    trees: Trees
    alone: bool


class Recipe(NamedTuple):
    """What answers for a GPU: models of the cell with their weights, and the situation (code into SITUATIONS)."""

    members: tuple[tuple[Model, float], ...]
    situation: int


@dataclass(frozen=True, slots=True)
class Samples:
    """Measured rows of one cell: features float32 [columns, n], residual [n] and GPU id and make per code."""

    features: Singles
    residual: Floats
    gpu: Ints
    names: Sequence[str]
    makes: Sequence[str]

    def of(self, rows: Ints) -> Samples:
        """The rows given."""
        return Samples(self.features[:, rows], self.residual[rows], self.gpu[rows], self.names, self.makes)


@dataclass(frozen=True)
class Cell:
    """Models of one operator in one dtype.

    own       GPU id -> its model
    make      GPU id -> its make
    shared    model of all GPUs together; None where there is only one
    strength  of `shared` on a GPU of a make that is none of theirs
    low, high float64 [columns], range of the features that do not depend on the GPU
    """

    own: Mapping[str, Model] = field(default_factory=dict)
    make: Mapping[str, str] = field(default_factory=dict)
    shared: Model | None = None
    strength: float = 0.0
    low: Floats = field(default_factory=lambda: np.empty(0))
    high: Floats = field(default_factory=lambda: np.empty(0))

    @classmethod
    def empty(cls, columns: int) -> Self:
        """Nothing learned, of a range that holds everything."""
        return cls(low=np.full(columns, -np.inf), high=np.full(columns, np.inf))

    def recipe(self, gpu: str, make: str) -> Recipe:
        """What answers for a GPU."""
        mine = self.own.get(gpu)
        if mine is not None and mine.alone:
            return Recipe(((mine, 1.0),), S_SEEN)
        others = self.others(gpu, make)
        if mine is not None:
            return Recipe((*others.members, (mine, 1.0)), S_CALIBRATED)
        return others

    def others(self, gpu: str, make: str) -> Recipe:
        """What answers for a GPU without rows of its own."""
        kin = [model for name, model in self.own.items() if self.make[name] == make and name != gpu and model.alone]
        if kin and make:
            return Recipe(tuple((model, 1.0 / len(kin)) for model in kin), S_SIBLING)
        return Recipe(((self.shared, self.strength),) if self.shared and self.strength else (), S_UNSEEN)

    def state(self) -> dict[str, Any]:
        """As plain containers of arrays."""
        models = {name: _model_state(model) for name, model in self.own.items()}
        shared = None if self.shared is None else _model_state(self.shared)
        told = {"own": models, "make": dict(self.make), "shared": shared, "strength": self.strength}
        return told | {"low": self.low, "high": self.high}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """The inverse of `state`."""
        own = {name: _model_from(model) for name, model in state["own"].items()}
        shared = None if state["shared"] is None else _model_from(state["shared"])
        return cls(own, dict(state["make"]), shared, float(state["strength"]), state["low"], state["high"])


def _model_state(model: Model) -> dict[str, Any]:
    return {"mean": model.mean, "trees": model.trees.state(), "alone": model.alone}


def _model_from(state: Mapping[str, Any]) -> Model:
    return Model(float(state["mean"]), Trees.from_state(state["trees"]), bool(state["alone"]))


def learn(samples: Samples, shape_features: int, before: Cell | None = None) -> Cell:
    """The cell that these samples teach; what `before` knows of other GPUs stays."""
    codes = np.unique(samples.gpu).tolist()
    names = {samples.names[code] for code in codes}
    old = before or Cell()
    shape = samples.features[:shape_features]
    low, high = shape.min(axis=1).astype(np.float64), shape.max(axis=1).astype(np.float64)
    if before is not None and len(old.low) == len(low):
        low, high = np.minimum(low, old.low), np.maximum(high, old.high)
    shared, strength = old.shared, old.strength
    if len(codes) > 1 and names >= set(old.own):
        shared, strength = _shared(samples, codes, SHARED_ROWS, SHARED_TREES), _strength(samples, codes)
    make = {**old.make, **{samples.names[code]: samples.makes[code] for code in codes}}
    base = Cell({gpu: model for gpu, model in old.own.items() if gpu not in names}, make, shared, strength, low, high)
    own = dict(base.own)
    for code in codes:
        own[samples.names[code]] = _own(samples.of(np.flatnonzero(samples.gpu == code)), code, base)
    return Cell(own, make, shared, strength, low, high)


def _own(samples: Samples, code: int, base: Cell) -> Model:
    """The model of one GPU."""
    if len(samples.residual) >= ENOUGH:
        return fitted(samples.features, samples.residual, alone=True)
    others = base.recipe(samples.names[code], samples.makes[code])
    return corrected(samples.features, samples.residual - answered(others, samples.features))


def calibrated(samples: Samples, before: Cell) -> Cell:
    """`before` with small corrections for the GPUs of these samples that have no model of their own."""
    own, make = dict(before.own), dict(before.make)
    for code in np.unique(samples.gpu).tolist():
        name = samples.names[code]
        if name not in own or not own[name].alone:
            rows = samples.of(np.flatnonzero(samples.gpu == code))
            others = before.others(name, samples.makes[code])
            own[name] = corrected(rows.features, rows.residual - answered(others, rows.features))
            make[name] = samples.makes[code]
    return Cell(own, make, before.shared, before.strength, before.low, before.high)


def fitted(features: Singles, residual: Floats, *, alone: bool, trees: int | None = None, weight: Any = None) -> Model:
    """Trees on the deviation of `residual` [n] from its mean."""
    mass = np.ones(len(residual)) if weight is None else weight
    mean = float(np.average(residual, weights=mass))
    count = min(max(len(residual) // 25, 60), 600) if trees is None else trees
    return Model(mean, boosted(np.ascontiguousarray(features), residual - mean, mass, Growth(count)), alone)


def corrected(features: Singles, deviation: Floats) -> Model:
    """A small model of what is left, from few rows: their shrunk mean, and trees where there are enough to grow."""
    n = len(deviation)
    mean = float(np.median(deviation)) * n / (n + 2.0)
    grown = boosted(np.ascontiguousarray(features), deviation - mean, np.ones(n), Growth(min(2 * n, 150), rate=0.05))
    return Model(mean, grown, False)


def _shared(samples: Samples, codes: Sequence[int], most: int, trees: int) -> Model:
    """One model of all GPUs `codes`, each with the same weight and at most `most` rows."""
    kept = [_some(samples, code, most) for code in codes]
    weight = np.concatenate([np.full(len(part), 1.0 / len(part)) for part in kept])
    rows = np.concatenate(kept)
    features, residual = samples.features[:, rows], samples.residual[rows]
    return fitted(features, residual, alone=False, trees=trees, weight=weight)


def _some(samples: Samples, code: int, most: int) -> Ints:
    """At most `most` rows of a GPU, at random but always the same."""
    rows = np.flatnonzero(samples.gpu == code)
    return np.random.default_rng(0).permutation(rows)[:most]


def _strength(samples: Samples, codes: Sequence[int]) -> float:
    """The strength of STRENGTHS with the least error over GPUs that were held out in turn, each make as a whole."""
    errors = []
    makes = {code: samples.makes[code] or samples.names[code] for code in codes}
    for make in sorted(set(makes.values())):
        rest = [code for code in codes if makes[code] != make]
        if not rest:
            continue
        model = _shared(samples, rest, TRIAL_ROWS, TRIAL_TREES)
        for code in codes:
            if makes[code] == make:
                rows = _some(samples, code, TRIAL_ROWS)
                full = answered(Recipe(((model, 1.0),), S_UNSEEN), samples.features[:, rows])
                left = samples.residual[rows]
                errors.append([np.abs(np.expm1(strength * full - left)).mean() for strength in STRENGTHS])
    return STRENGTHS[int(np.argmin(np.mean(errors, axis=0)))] if errors else 0.0


def answered(recipe: Recipe, features: Singles) -> Floats:
    """The recipe's log correction of rows with these features, [n]."""
    total = np.zeros(features.shape[1])
    for model, weight in recipe.members:
        total += weight * (model.mean + model.trees.sum(features))
    return total
