"""Per-operator models: how the measured times of one operator in one dtype deviate from the analytic model.

A model holds the constants of the physics fit (physics.physics_fit) and a model of the residuals over the features of
models.features. A GPU with enough rows has a model of its own. Its siblings, GPUs of the same architecture key
(architecture and kind of memory), borrow it. Other GPUs use `shared`, trained on all GPUs, scaled by its `strength`. A
GPU with few rows corrects what it would get without them. Training: learning.fitting.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import numpy as np

from app.bands.groups import S_CALIBRATED, S_SEEN, S_SIBLING, S_UNSEEN
from app.ops.gemm import CANDIDATES
from app.predictors.auto.operators.models.corrections import NO_TREND, Smooth, Trend, add_smooth
from app.predictors.auto.operators.models.features import FEATURES, SHAPE_FEATURES
from app.predictors.physics.analytic_model import ANY_TILE
from app.predictors.physics.physics_fit import FACTORS, NEUTRAL
from app.predictors.schema import check_below, check_shape
from app.predictors.trees.boosted import Trees
from app.predictors.trees.sums import DEPTH, LEAVES
from app.tables.arrays import Floats, Singles


def check_model_parts(factors: object, trees: Trees, smooth: Smooth, trend: Trend, tile: int) -> None:
    """Raise ValueError if a part of a model has a wrong shape, or refers to an unknown feature or tile."""
    check_shape("factors", factors, FACTORS)
    check_shape("features of trees", trees.feature, None, DEPTH)
    check_shape("thresholds of trees", trees.threshold, len(trees.feature), DEPTH)
    check_shape("leaves of trees", trees.value, len(trees.feature), LEAVES)
    check_below("features of trees", trees.feature, FEATURES)
    check_shape("columns of a smooth part", smooth.column, None)
    check_shape("scales of a smooth part", smooth.scale, len(smooth.column))
    check_shape("points of a smooth part", smooth.point, None, len(smooth.column))
    check_shape("weights of a smooth part", smooth.weight, len(smooth.point))
    check_below("columns of a smooth part", smooth.column, FEATURES)
    check_trend(trend)
    check_below("tiles", tile, len(CANDIDATES), ANY_TILE)


def check_trend(trend: Trend) -> None:
    """Raise ValueError if a part of a trend has a wrong shape, or refers to an unknown feature."""
    parts, keys, classes = len(trend.part), len(trend.key), len(trend.member)
    check_below("told parts of a trend", trend.told, keys + 1)
    check_below("parts of a trend", trend.part, FEATURES)
    check_below("keys of a trend", trend.key, FEATURES)
    check_shape("classes of a trend", trend.member, classes, keys)
    if parts:
        check_shape("weights of a trend", trend.weight, 1 + classes, parts)


# Most siblings whose models are averaged for a GPU without rows of its own.
MOST_SIBLINGS = 3


class Strengths(NamedTuple):
    """Share of a model that applies to a GPU of another architecture key: of each factor [FACTORS], of its trees.

    `limits_siblings`: whether the same shares apply to models of siblings, which otherwise apply in full.
    """

    factors: Floats
    trees: float
    limits_siblings: bool = False


NOTHING_CARRIED, ALL_CARRIED = Strengths(np.zeros(FACTORS), 0.0), Strengths(np.ones(FACTORS), 1.0)


class Model(NamedTuple):
    """Physics under `factors` [FACTORS], and log(measured / that) = mean + trend + trees + smooth.

    Many rows give trees, under a trend where the operator has parts; few rows give trees and a smooth part. `alone`:
    the model stands by itself; otherwise it corrects the models of other GPUs. `tile`: the only tile of the GPU's
    kernels, a row of CANDIDATES, or ANY_TILE.
    """

    factors: Floats
    mean: float
    trees: Trees
    smooth: Smooth
    alone: bool
    tile: int = ANY_TILE
    trend: Trend = NO_TREND

    def log_correction(self, features: Singles) -> Floats:
        """Return its log correction of rows with `features` float32 [columns, n], float64 [n]."""
        total = self.mean + self.trend.sum(features) + self.trees.sum(features)
        add_smooth(np.ascontiguousarray(features), self.smooth, 1.0, total)
        return total

    @property
    def of_many_rows(self) -> bool:
        """Whether it was fitted to many rows of a GPU."""
        return self.alone and len(self.trees.feature) > 0


class GpuModel(NamedTuple):
    """GPU model: physics with `tile` under `factors` [FACTORS], corrected by weighted models.

    `situation` is a code into SITUATIONS.
    """

    factors: Floats
    members: tuple[tuple[Model, float], ...]
    situation: int
    tile: int = ANY_TILE


def log_correction(gpu_model: GpuModel, features: Singles) -> Floats:
    """Return the log correction by the models of a GPU for rows with `features` [columns, n], float64 [n]."""
    total = np.zeros(features.shape[1])
    for model, weight in gpu_model.members:
        total += weight * model.log_correction(features)
    return total


@dataclass(frozen=True)
class Cell:
    """Models of one operator in one dtype.

    own           GPU id -> its model
    architecture  GPU id -> its architecture key
    shared        model of all GPUs together; None if only one was measured
    strength      share of `shared` that applies to a GPU of another architecture key
    low, high     float64 [SHAPE_FEATURES], training range of the shape features; unbounded without training
    borrowed      whether it was learned from another dtype and only corrected by rows of its own
    lenders       GPU id -> its model of that other dtype, which the own rows correct
    """

    own: Mapping[str, Model] = field(default_factory=dict)
    architecture: Mapping[str, str] = field(default_factory=dict)
    shared: Model | None = None
    strength: Strengths = NOTHING_CARRIED
    low: Floats = field(default_factory=lambda: np.full(SHAPE_FEATURES, -np.inf))
    high: Floats = field(default_factory=lambda: np.full(SHAPE_FEATURES, np.inf))
    borrowed: bool = False
    lenders: Mapping[str, Model] = field(default_factory=dict)

    def as_borrowed(self, without: Collection[str]) -> Cell:
        """Return this cell as borrowed by another dtype, without the models of the GPUs in `without`."""
        own = {gpu: model for gpu, model in self.own.items() if gpu not in without}
        return replace(self, own=own, borrowed=True, lenders={gpu: model for gpu, model in own.items() if model.alone})

    def gpu_model(self, gpu: str, architecture: str) -> GpuModel:
        """Return the GPU model of a GPU, by its id and architecture key."""
        mine = self.own.get(gpu)
        if mine is not None and mine.alone:
            return GpuModel(mine.factors, ((mine, 1.0),), S_SEEN, mine.tile)
        others = self.others(gpu, architecture)
        if mine is not None:
            return GpuModel(mine.factors, (*others.members, (mine, 1.0)), S_CALIBRATED, mine.tile)
        return others

    def others(self, gpu: str, architecture: str) -> GpuModel:
        """Return the GPU model of a GPU as if it had no rows of its own."""
        if gpu in self.lenders:
            lender = self.lenders[gpu]
            return GpuModel(lender.factors, ((lender, 1.0),), S_SIBLING, lender.tile)
        known = {**self.own, **self.lenders}.items()
        siblings = [
            model for name, model in known if self.architecture[name] == architecture and name != gpu and model.alone
        ]
        if any(model.of_many_rows for _, model in known):
            # A model of few rows is no match for many rows of other GPUs.
            siblings = [model for model in siblings if model.of_many_rows]
        siblings = siblings[:MOST_SIBLINGS]
        if siblings and architecture:
            carried = self.strength if self.strength.limits_siblings else ALL_CARRIED
            factors = np.exp(carried.factors * np.mean([np.log(model.factors) for model in siblings], axis=0))
            members = tuple((model, carried.trees / len(siblings)) for model in siblings) if carried.trees else ()
            alike = {model.tile for model in siblings}
            return GpuModel(factors, members, S_SIBLING, alike.pop() if len(alike) == 1 else ANY_TILE)
        tile = self._tile_of_chip(gpu, architecture)
        if self.shared is None:
            return GpuModel(NEUTRAL, (), S_UNSEEN, tile)
        members = ((self.shared, self.strength.trees),) if self.strength.trees else ()
        return GpuModel(self.shared.factors**self.strength.factors, members, S_UNSEEN, tile)

    def _tile_of_chip(self, gpu: str, architecture: str) -> int:
        """Return the only tile of other GPUs of the architecture, for which kernels are built whatever the memory.

        ANY_TILE if they have none or several.
        """
        chip = architecture.partition("/")[0]
        alike = {
            name for name, of in self.architecture.items() if chip and of.partition("/")[0] == chip and name != gpu
        }
        tiles = {model.tile for name, model in self.own.items() if name in alike and model.alone}
        return tiles.pop() if len(tiles) == 1 else ANY_TILE

    def with_models(self, models: Mapping[int, Model]) -> Cell:
        """Return this cell with each model replaced by that of its `id`."""
        own = {gpu: models[id(model)] for gpu, model in self.own.items()}
        return replace(self, own=own, shared=None if self.shared is None else models[id(self.shared)])

    def stands_alone(self, gpu: str) -> bool:
        """Return whether a GPU has a model of its own, which few rows do not change."""
        return gpu in self.own and self.own[gpu].alone and gpu not in self.lenders

    def state(self) -> dict[str, Any]:
        """Return the state as plain containers of arrays."""
        models = {name: _model_state(model) for name, model in self.own.items()}
        shared = None if self.shared is None else _model_state(self.shared)
        state = {"own": models, "make": dict(self.architecture), "shared": shared, "strength": list(self.strength)}
        return state | {"low": self.low, "high": self.high}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the cell of a `state`.

        Raises ValueError if an array has a wrong shape or refers to an unknown feature.
        """
        own = {name: _model_from(model) for name, model in state["own"].items()}
        shared = None if state["shared"] is None else _model_from(state["shared"])
        for end in ("low", "high"):
            check_shape("ranges of features", state[end], SHAPE_FEATURES)
        return cls(own, dict(state["make"]), shared, Strengths(*state["strength"]), state["low"], state["high"])


def _model_state(model: Model) -> dict[str, Any]:
    state = {"factors": model.factors, "mean": model.mean, "alone": model.alone, "tile": model.tile}
    trend = {"trend": model.trend._asdict()} if len(model.trend.part) else {}
    return state | {"trees": model.trees.state(), "smooth": model.smooth._asdict()} | trend


def _model_from(state: Mapping[str, Any]) -> Model:
    trees, smooth = Trees.from_state(state["trees"]), Smooth(**state["smooth"])
    tile = int(state.get("tile", ANY_TILE))  # artefacts from before tiles were stored use any
    trend = Trend(**state["trend"]) if "trend" in state else NO_TREND
    check_model_parts(state["factors"], trees, smooth, trend, tile)
    return Model(state["factors"], float(state["mean"]), trees, smooth, bool(state["alone"]), tile, trend)
