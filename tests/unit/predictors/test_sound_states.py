"""Stored states with inconsistent indices or shapes, which compiled code must not read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from app.config import SHIPPED_MODELS
from app.engine.shipped import shipped_versions
from app.predictors import BY_NAME

State = Any
CHANGES: dict[str, tuple[str, str, Callable[[State], None]]] = {}


def change(name: str, says: str) -> Callable[[Callable[[State], None]], Callable[[State], None]]:
    """A way to break a state of predictor `name`, and what is said of it."""

    def kept(alter: Callable[[State], None]) -> Callable[[State], None]:
        CHANGES[alter.__name__] = (name, says, alter)
        return alter

    return kept


def shared_model(state: State) -> State:
    return state["operators"]["linear fp32"]["shared"]


@change("auto", "features of trees are not all from 0")
def a_feature_that_there_is_not(state: State) -> None:
    trees = shared_model(state)["trees"]
    trees["feature"] = trees["feature"] + np.int16(1000)


@change("auto", "places of thresholds are not all from 0")
def fewer_thresholds(state: State) -> None:
    trees = shared_model(state)["trees"]
    trees["threshold"] = trees["threshold"][:1]


@change("auto", "leaves of trees are")
def fewer_leaves(state: State) -> None:
    trees = shared_model(state)["trees"]
    trees["value"] = trees["value"][:, :-1]


@change("auto", "tiles are not all from -1")
def a_tile_that_there_is_not(state: State) -> None:
    shared_model(state)["tile"] = 10_000


@change("auto", "ranges of features are")
def a_shorter_range(state: State) -> None:
    cell = state["operators"]["linear fp32"]
    cell["low"] = cell["low"][:-1]


@change("auto", "figures of kernels are")
def fewer_bottlenecks(state: State) -> None:
    state["cost"] = state["cost"][:-1]


@change("tilewave", "weights of a layer are")
def a_narrower_layer(state: State) -> None:
    network = state["networks"][0]
    network["weights"][1] = network["weights"][1][:-1]


@change("tilewave", "starts of GPUs are not all from 0")
def a_start_beyond_the_points(state: State) -> None:
    tiles = next(cell["tiles"] for cell in state["cells"] if len(cell["tiles"]["gpus"]))
    tiles["first"] = tiles["first"] + 1_000_000


@change("habitat", "points of a sample are")
def a_dimension_less(state: State) -> None:
    sample = state["linear fp32"]
    sample["point"] = sample["point"][:, :-1]


@pytest.mark.parametrize("broken", CHANGES)
def test_inconsistent_states_are_rejected_before_use(broken: str) -> None:
    name, says, alter = CHANGES[broken]
    state = shipped_versions(SHIPPED_MODELS)[name].payload()["state"]
    predictor: Any = BY_NAME[name]
    alter(state)
    with pytest.raises(ValueError, match=says):
        predictor.from_state(state)
