"""All models of `auto`, packed into few arrays for compiled code."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.ops import OPS
from app.predictors.auto.operators.models.corrections import Smooth
from app.predictors.auto.operators.models.features import FEATURES
from app.predictors.auto.operators.models.per_operator import Cell, Model
from app.predictors.trees.boosted import NO_TREES, Trees
from app.predictors.trees.sums import Questions, TreeArrays, questions_of
from app.tables.arrays import Bools, Floats, Ints, Singles

# Most device counts that are stored per collective and GPU.
MOST_NUMBERS = 8
# Most columns that a smooth part may depend on.
SMOOTH_COLUMNS = max(len(op.fields) for op in OPS[1:])


class Packed(NamedTuple):
    """All models of all cells (operator and dtype), packed into few arrays; the last cell, -1, has learned nothing.

    trees            those of the arena
    added            those of models outside it; they follow the arena's in the spans of models
    threshold        float32, thresholds of all models
    threshold_begin  int [models, FEATURES + 1], where in `threshold` those of each feature of a model begin
    first, stop      int [models], span of each model's trees
    mean             float64 [models], constant added to the trees
    column, scale    [models, SMOOTH_COLUMNS], of each model's smooth part; padded by scale 0
    point, weight    [points, SMOOTH_COLUMNS] and [points], of all smooth parts
    begin            int [models + 1], where each model's points begin
    trend            float32, flat trends of all models
    trend_begin      int [models + 1], where each begins
    low, high        float64 [cells, SHAPE_FEATURES], training range of the shape features
    """

    trees: TreeArrays
    added: TreeArrays
    threshold: Singles
    threshold_begin: Ints
    first: Ints
    stop: Ints
    mean: Floats
    column: NDArray[np.int16]
    scale: Singles
    point: Singles
    weight: Singles
    begin: Ints
    trend: Singles
    trend_begin: Ints
    low: Floats
    high: Floats


class GpuModels(NamedTuple):
    """The GPU model of every cell and GPU, packed into arrays; the last cell, -1, has learned nothing.

    factors          float64 [cells, gpus, FACTORS], constants of the physics fit
    member, weight   [cells, gpus, members], index of each model that corrects the physics, -1 for none; its weight
    donor            int, like `member`: GPU row on which the model is evaluated, -1 for the queried GPU itself
    bandwidth_ratio  float64 [cells, gpus], DRAM bandwidth per SM and clock over that of the donors; 1 without donors
                     (app.predictors.auto.operators.transfer)
    situation        int [cells, gpus], code into SITUATIONS
    tile             int [cells, gpus], the only tile of the GPU's kernels, or ANY_TILE
    cell             int [kinds, dtypes, most], rows of the cells that apply, the default first; padded by -1
    borrowed         bool [kinds, dtypes], whether the first of them was learned from another dtype
    dtype            int [cells], the dtype from which each cell was learned
    devices          float64 [cells, gpus, MOST_NUMBERS], logarithms of the measured device counts of a collective,
                     ascending; padded by infinity
    library          float64 [cells, gpus, 2], lowest and highest code of the collective libraries measured
    """

    factors: Floats
    member: Ints
    weight: Floats
    donor: Ints
    bandwidth_ratio: Floats
    situation: Ints
    tile: Ints
    cell: Ints
    borrowed: Bools
    dtype: Ints
    devices: Floats
    library: Floats


class Prepared(NamedTuple):
    """What a corrected version derives from its models to answer on the GPUs of a table.

    `packed` lacks the trees of the arena, which the version before the corrections has.
    """

    packed: Packed
    gpu_models: GpuModels


class TreeArena(NamedTuple):
    """Trees of many models in contiguous arrays, which the models' own trees are views of: one copy in memory.

    trees      all trees, leaves in half precision
    parts      the trees of each model, views of `trees`
    first      index in `trees` at which each part begins
    questions  thresholds of each part
    """

    trees: Trees
    parts: tuple[Trees, ...]
    first: tuple[int, ...]
    questions: tuple[Questions, ...]

    @classmethod
    def of(cls, parts: Sequence[Trees]) -> TreeArena:
        """Return an arena of copies of these trees."""
        columns: list[Any] = [
            np.concatenate([empty, *(part[k] for part in parts)], dtype=dtype, casting="same_kind")
            for k, (empty, dtype) in enumerate(zip(NO_TREES, (np.int16, np.float32, np.float16), strict=True))
        ]
        stops = np.cumsum([0, *(len(part.feature) for part in parts)]).tolist()
        views = (Trees(*[column[first:stop] for column in columns]) for first, stop in pairwise(stops))
        questions = (questions_of(part.feature, part.threshold, FEATURES) for part in parts)
        return cls(Trees(*columns), tuple(views), tuple(stops[:-1]), tuple(questions))

    @property
    def arrays(self) -> TreeArrays:
        """Return its trees as compiled code reads them."""
        levels = [_NO_QUESTIONS.level_threshold, *(part.level_threshold for part in self.questions)]
        return TreeArrays(self.trees.feature, np.concatenate(levels), self.trees.value.view(np.uint16))


EMPTY, _NO_QUESTIONS = TreeArena.of(()), questions_of(NO_TREES.feature, NO_TREES.threshold, FEATURES)
NO_TREE_ARRAYS = EMPTY.arrays


def packed(models: Sequence[Model], cells: Sequence[Cell], arena: TreeArena) -> Packed:
    """Return `models` and the training ranges of `cells`, packed; trees outside the arena are copied."""
    standing = {id(part) for part in arena.parts}
    new = [model.trees for model in models if id(model.trees) not in standing and len(model.trees.feature)]
    added, behind = TreeArena.of(new), len(arena.trees.feature)
    place = {id(part): at for at, part in enumerate((*arena.parts, *new))}
    at = [place.get(id(model.trees), -1) for model in models]
    first = np.array([*arena.first, *(behind + of for of in added.first), 0], dtype=np.intp)[at]
    stop = first + np.array([len(model.trees.feature) for model in models], dtype=np.intp)
    ranged = (*cells, Cell())
    low, high = (np.array([getattr(cell, end) for cell in ranged], dtype=np.float64) for end in ("low", "high"))
    mean = np.array([model.mean for model in models], dtype=np.float64)
    smooth: list[Any] = _packed_smooth([model.smooth for model in models])
    threshold, threshold_begin = _packed_thresholds((*arena.questions, *added.questions))
    trees: list[Any] = [arena.arrays, added.arrays, threshold, threshold_begin[at]]
    trend = [model.trend.flat() for model in models]
    trends = [np.concatenate([np.empty(0, np.float32), *trend]), np.cumsum([0, *map(len, trend)], dtype=np.intp)]
    parts: list[Any] = [*trees, first, stop, mean, *smooth, *trends, low, high]
    return Packed(*parts)


def _packed_thresholds(parts: Sequence[Questions]) -> tuple[Singles, Ints]:
    """Return the thresholds, and where each feature's begin, int [parts + 1, FEATURES + 1].

    The last part stands for models without trees.
    """
    every = [*parts, _NO_QUESTIONS]
    starts = np.cumsum([0, *(len(part.threshold) for part in parts)])
    threshold_begin = np.stack([part.begin for part in every]) + starts[:, None]
    return np.concatenate([part.threshold for part in every]), threshold_begin


def _packed_smooth(parts: Sequence[Smooth]) -> list[Any]:
    """Return the fields of Packed from `column` to `begin`."""
    count, begin = len(parts), np.cumsum([0, *(len(part.weight) for part in parts)], dtype=np.intp)
    column, scale = np.zeros((count, SMOOTH_COLUMNS), np.int16), np.zeros((count, SMOOTH_COLUMNS), np.float32)
    point = np.zeros((begin[-1], SMOOTH_COLUMNS), np.float32)
    for k, part in enumerate(parts):
        used = len(part.column)
        column[k, :used], scale[k, :used] = part.column, part.scale
        point[begin[k] : begin[k + 1], :used] = part.point
    weight = np.concatenate([np.empty(0, np.float32), *(part.weight for part in parts)])
    return [column, scale, point, weight, begin]
