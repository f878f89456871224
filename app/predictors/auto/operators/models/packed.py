"""All that `auto` learned, in few arrays that compiled code reads."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.ops import OPS
from app.predictors.auto.operators.models.boosted_trees import NO_TREES, Trees
from app.predictors.auto.operators.models.features import FEATURES, SHAPE_FEATURES
from app.predictors.auto.operators.models.per_operator import Cell, Model
from app.predictors.auto.operators.models.smooth import Smooth
from app.predictors.auto.operators.models.tree_sums import Questions, questions_of
from app.tables.arrays import Bools, Floats, Ints, Singles

# Numbers of devices that are told apart of a collective.
MOST_NUMBERS = 8
# Dimensions of an operator that a smooth part may depend on.
SMOOTH_COLUMNS = max(len(op.fields) for op in OPS[1:])


class Packed(NamedTuple):
    """All models of all cells in few arrays.

    feature, cut, value        of all models' trees, what each level compares, with which place among its feature's
                               thresholds (models.tree_sums), and the bits of half-precision leaves
    edge, edges                thresholds of all models, and where in them each feature's of a model begin,
                               [models, FEATURES + 1]
    first, stop, mean          of every model: its trees, and what it adds to them
    column, scale              of every model's smooth part, [models, SMOOTH_COLUMNS]; scale 0 where it has fewer
    point, weight              of all smooth parts, [points, SMOOTH_COLUMNS] and [points]
    begin, end                 of every model: its points
    low, high                  range of shape features per cell, float64 [cells, SHAPE_FEATURES]
    """

    feature: NDArray[np.int16]
    cut: NDArray[np.uint8]
    value: NDArray[np.uint16]
    edge: Singles
    edges: Ints
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

    `cell` [kinds, dtypes, most] are the rows of cells that may answer, the usual one first, -1 where there are no more;
    `lent` [kinds, dtypes] whether the first was learned of another dtype; `dtype` [cells] what each was learned of;
    `devices` [cells, gpus, MOST_NUMBERS] the logarithms of the numbers of devices that a collective was measured on, in
    order, infinite where there are no more; `library` [cells, gpus, 2] the first and last code of its libraries there.
    `teacher` is the GPU row on which each model is asked, -1 where it is the GPU itself; `edge` how much more DRAM
    bandwidth per SM and clock the GPU has than its teachers, 1 where it has none (models.sibling_transfer).
    """

    factors: Floats
    member: Ints
    weight: Floats
    teacher: Ints
    edge: Floats
    situation: Ints
    tile: Ints
    cell: Ints
    lent: Bools
    dtype: Ints
    devices: Floats
    library: Floats


class Shelf(NamedTuple):
    """Trees of many models side by side, so that what models hold and what compiled code reads is there but once.

    trees      all of them, leaves in half precision
    parts      those of each model, views of `trees`, which begin at `first`
    questions  of each part
    """

    trees: Trees
    parts: tuple[Trees, ...] = ()
    first: tuple[int, ...] = ()
    questions: tuple[Questions, ...] = ()

    def joined(self, new: Sequence[Trees]) -> Shelf:
        """Copies of these and others, in their order."""
        parts = [*self.parts, *new]
        columns: list[Any] = [np.concatenate([kept, *(part[k] for part in parts)]) for k, kept in enumerate(NO_TREES)]
        columns[-1] = columns[-1].astype(np.float16, copy=False)
        stops = np.cumsum([0, *(len(part.feature) for part in parts)]).tolist()
        views = (Trees(*[column[first:stop] for column in columns]) for first, stop in pairwise(stops))
        asked = (questions_of(part.feature, part.threshold, FEATURES) for part in new)
        return Shelf(Trees(*columns), tuple(views), tuple(stops[:-1]), (*self.questions, *asked))


EMPTY = Shelf(NO_TREES)


def packed(models: Sequence[Model], cells: Sequence[Cell], shelf: Shelf) -> Packed:
    """Models, and the ranges of the cells that they are of, side by side; trees that are not on the shelf join it."""
    standing = {id(part) for part in shelf.parts}
    new = [model.trees for model in models if id(model.trees) not in standing and len(model.trees.feature)]
    every = [*shelf.parts, *new]
    if new:
        shelf = shelf.joined(new)
    place = {id(part): at for at, part in enumerate(every)}
    at = [place.get(id(model.trees), -1) for model in models]
    first = np.array([*shelf.first, 0], dtype=np.intp)[at]
    stop = first + np.array([len(model.trees.feature) for model in models], dtype=np.intp)
    ranges = [np.array([getattr(cell, end) for cell in cells]) for end in ("low", "high")]
    low, high = (part.reshape(-1, SHAPE_FEATURES).astype(np.float64) for part in ranges)
    mean = np.array([model.mean for model in models], dtype=np.float64)
    smooth: list[Any] = _packed_smooth([model.smooth for model in models])
    cut, edge, edges = _packed_questions(shelf.questions)
    trees: list[Any] = [shelf.trees.feature, cut, shelf.trees.value.view(np.uint16), edge, edges[at]]
    parts: list[Any] = [*trees, first, stop, mean, *smooth, low, high]
    return Packed(*parts)


def _packed_questions(parts: Sequence[Questions]) -> tuple[NDArray[np.uint8], Singles, Ints]:
    """Cuts, edges, and where each feature's edges begin, [parts + 1, FEATURES + 1]; the last part has none."""
    nothing = questions_of(NO_TREES.feature, NO_TREES.threshold, FEATURES)
    every = [*parts, nothing]
    starts = np.cumsum([0, *(len(part.edge) for part in parts)])
    edges = np.stack([part.begin for part in every]) + starts[:, None]
    return np.concatenate([part.cut for part in every]), np.concatenate([part.edge for part in every]), edges


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
