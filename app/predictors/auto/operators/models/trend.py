"""Trend of a GPU's times: a sum of an operator's parts, each times a constant of its own, under the trees.

Trees are constant between two measured layers and beyond the last. Where the time of a layer depends on its dimensions
otherwise than the physics says, that is wrong for every layer not measured. An operator of several kernels lists its
parts: amounts that the times of its kernels are in proportion to (`Op.parts`). Rows that have the same parts, format,
stack and phase are a class with constants of its own, as ConvMeter has for blocks. Fitted in learning.trend_fit.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from app.ops import OPS
from app.predictors.auto.operators.models.features import (
    EAGER,
    LOG_TIME,
    PARTS,
    ROUTER_CLASS,
    STACK,
    code_dims,
    dim_rows,
)
from app.runtime.compiled import compiled, compiled_per_row
from app.tables.arrays import Floats, Singles

# Numbers in front of the arrays of a flat trend.
_HEAD = 4
# Logarithm that parts which are there exceed: their amounts are at least 1.
PRESENT = -1.0
# Least seconds of a sum of parts, of which there is a logarithm.
_LEAST_S = 1e-9


class Axes(NamedTuple):
    """Rows of an operator's features: logarithms of its parts, and what tells classes (`Trend.key`).

    An operator without parts has no trend.
    """

    part: tuple[int, ...] = ()
    key: tuple[int, ...] = ()

    @classmethod
    def of(cls, kind: int) -> Self:
        """Return those of an operator, by its code."""
        part = tuple(range(PARTS, PARTS + len(OPS[kind].part_names)))
        if not part:
            return cls()
        rows, codes = dim_rows(kind), code_dims(kind)
        return cls(part, (*part, *(rows[name] for name in codes), STACK, ROUTER_CLASS, EAGER))


class Trend(NamedTuple):
    """A sum of p parts for each of k classes of rows, and one for all other rows.

    part    int16 [p], rows of the features that hold the logarithms of the parts
    key     int16 [c], rows of the features that tell classes: of the first `told` parts whether they are there; codes
    member  float32 [k, c], values of the keys in each class
    weight  float32 [1 + k, p], seconds of one of each part, first those of all other rows
    """

    part: NDArray[np.int16]
    key: NDArray[np.int16]
    member: Singles
    weight: Singles
    told: int

    def sum(self, features: Singles) -> Floats:
        """Return the log correction of the physics for rows with `features` float32 [columns, n], float64 [n]."""
        total = np.zeros(features.shape[1])
        add_trend(np.ascontiguousarray(features), self.flat(), 1.0, total)
        return total

    def flat(self) -> Singles:
        """Return all numbers in one array, as `add_trend` reads them; empty for no trend."""
        if not len(self.part):
            return np.empty(0, np.float32)
        head = (len(self.part), len(self.key), self.told, len(self.member))
        return np.concatenate([head, *(np.ravel(part) for part in self[:-1])], dtype=np.float32, casting="same_kind")


_NO_ROWS, _NO_NUMBERS = np.empty(0, np.int16), np.empty((0, 0), np.float32)
NO_TREND = Trend(_NO_ROWS, _NO_ROWS, _NO_NUMBERS, _NO_NUMBERS, told=0)


def without_parts(features: Singles, axes: Axes) -> Singles:
    """Return `features` [columns, n] for trees, which split no better by parts: zero in their place."""
    if not axes.part:
        return features
    kept = features.copy()
    kept[list(axes.part)] = 0.0
    return kept


@compiled_per_row
def class_of(features: Singles, row: int, key: Singles, told: int, member: Singles) -> int:
    """Return the class of a row, counted from 1; 0 where none is like it."""
    for k in range(len(member)):
        alike = True
        for c in range(len(key)):
            value = features[int(key[c]), row]
            if (value > PRESENT if c < told else value) != member[k, c]:
                alike = False
                break
        if alike:
            return k + 1
    return 0


@compiled
def add_trend(features: Singles, flat: Singles, share: float, total: Floats) -> None:
    """Add `share` times the trend, as `Trend.flat` returns it, to total [m], for features [columns, m]."""
    if not len(flat):
        return
    parts, keys, told, classes = int(flat[0]), int(flat[1]), int(flat[2]), int(flat[3])
    part, at = flat[_HEAD : _HEAD + parts], _HEAD + parts + keys
    key, member = flat[_HEAD + parts : at], flat[at : at + keys * classes].reshape(classes, keys)
    weight = flat[at + keys * classes :].reshape(1 + classes, parts)
    for n in range(len(total)):
        k, seconds = class_of(features, n, key, told, member), 0.0
        for p in range(parts):
            log = np.float64(features[int(part[p]), n])
            seconds += weight[k, p] * np.exp(log) if log > PRESENT else 0.0
        total[n] += share * (np.log(max(seconds, _LEAST_S)) - features[LOG_TIME, n])
