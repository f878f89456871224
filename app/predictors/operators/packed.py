"""All that `auto` learned, in few arrays that compiled code reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.ops import OPS
from app.predictors.operators.boosting import NO_TREES
from app.predictors.operators.cells import Cell, Model
from app.predictors.operators.features import SHAPE_FEATURES
from app.predictors.operators.smooth import Smooth

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Ints = NDArray[np.intp]
Bools = NDArray[np.bool_]

# Dimensions of an operator that a smooth part may depend on.
SMOOTH_COLUMNS = max(len(op.fields) for op in OPS[1:])


class Packed(NamedTuple):
    """All models of all cells in few arrays.

    feature, threshold, value  as in app.predictors.operators.boosting.Trees, of all models
    first, stop, mean          of every model: its trees, and what it adds to them
    column, scale              of every model's smooth part, [models, SMOOTH_COLUMNS]; scale 0 where it has fewer
    point, weight              of all smooth parts, [points, SMOOTH_COLUMNS] and [points]
    begin, end                 of every model: its points
    low, high                  range of shape features per cell, float64 [cells, SHAPE_FEATURES]
    """

    feature: NDArray[np.int16]
    threshold: Singles
    value: Singles
    first: Ints
    stop: Ints
    mean: Floats
    column: NDArray[np.int16]
    scale: Singles
    point: Singles
    weight: Singles
    begin: Ints
    end: Ints
    low: Floats
    high: Floats


class Recipes(NamedTuple):
    """Per cell and GPU: factors, models, weights, situation, and the only tile of its kernels, or ANY_TILE.

    `cell` [kinds, dtypes] is a cell's row, -1 none; `lent` [kinds, dtypes] whether it was learned of another dtype.
    """

    factors: Floats
    member: Ints
    weight: Floats
    situation: Ints
    tile: Ints
    cell: Ints
    lent: Bools


def packed(models: Sequence[Model], cells: Sequence[Cell]) -> Packed:
    """Models, and the ranges of the cells that they are of, side by side."""
    trees = [NO_TREES, *(model.trees for model in models)]
    stop = np.cumsum([len(part.feature) for part in trees[1:]], dtype=np.intp)
    joined: list[Any] = [
        np.concatenate([part[k] for part in trees], dtype=kept.dtype) for k, kept in enumerate(NO_TREES)
    ]
    ranges = [np.array([getattr(cell, end) for cell in cells]) for end in ("low", "high")]
    low, high = (part.reshape(-1, SHAPE_FEATURES).astype(np.float64) for part in ranges)
    mean = np.array([model.mean for model in models], dtype=np.float64)
    first = np.append(0, stop)[:-1].astype(np.intp)
    smooth: list[Any] = _packed_smooth([model.smooth for model in models])
    parts: list[Any] = [*joined, first, stop, mean, *smooth, low, high]
    return Packed(*parts)


def _packed_smooth(parts: Sequence[Smooth]) -> list[Any]:
    """Smooth parts side by side, as Packed has them."""
    count, end = len(parts), np.cumsum([len(part.weight) for part in parts], dtype=np.intp)
    column, scale = np.zeros((count, SMOOTH_COLUMNS), np.int16), np.zeros((count, SMOOTH_COLUMNS), np.float32)
    point = np.zeros((int(end[-1]) if count else 0, SMOOTH_COLUMNS), np.float32)
    begin = np.append(0, end)[:-1].astype(np.intp)
    for k, part in enumerate(parts):
        used = len(part.column)
        column[k, :used], scale[k, :used] = part.column, part.scale
        point[begin[k] : end[k], :used] = part.point
    weight = np.concatenate([np.empty(0, np.float32), *(part.weight for part in parts)])
    return [column, scale, point, weight, begin, end]
