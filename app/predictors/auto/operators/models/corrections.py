"""Corrections of the physics beside trees: a smooth one by few rows, and a trend over an operator's parts by many.

The smooth correction fades with the distance from the measured shapes. Its kernel is (1 + r) exp(-r), Matérn 3/2
(Rasmussen and Williams 2006, section 4.2), r the distance over one length per column; fitted in learning.calibration.

The trend is a sum of the parts, each times a constant of its own, under the trees. Trees are constant between two
measured layers and beyond the last. Where the time of a layer depends on its dimensions otherwise than the physics
says, that is wrong for every layer not measured. An operator of several kernels lists its parts: amounts that the times
of its kernels are in proportion to (`Op.parts`). Rows that have the same parts, format, stack and phase are a class
with constants of its own, as ConvMeter has for blocks. They are fitted by non-negative least squares.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from app.coefficients import Coefficients
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

# Decimals that single precision keeps: values that differ by less are equal.
_DIGITS = 4


class Smooth(NamedTuple):
    """Sum over p points of weight x (1 + r) exp(-r).

    column  int16 [d], rows of the features that matter
    scale   float32 [d], one over their lengths
    point   float32 [p, d], measured rows, scaled
    weight  float32 [p]
    """

    column: NDArray[np.int16]
    scale: Singles
    point: Singles
    weight: Singles

    def measured(self, column: int) -> Floats:
        """Return the measured values of a column, ascending; empty if the smooth part does not depend on it."""
        here = np.flatnonzero(self.column == column)
        if not len(here) or not len(self.point):
            return np.empty(0)
        values = self.point[:, here[0]].astype(np.float64) / self.scale[here[0]]
        return np.unique(values.round(_DIGITS))


NOTHING = Smooth(np.empty(0, np.int16), np.empty(0, np.float32), np.empty((0, 0), np.float32), np.empty(0, np.float32))


@compiled
def add_smooth(features: Singles, smooth: Smooth, share: float, total: Floats) -> None:
    """Add `share` times the correction to total [m], for features float32 [columns, m]."""
    column, scale, point, weight = smooth
    if not len(weight):
        return
    squared, summed = np.empty(len(total)), np.zeros(len(total))
    for p in range(len(weight)):
        squared[:] = 0.0
        for d in range(len(column)):
            values, over, measured = features[column[d]], scale[d], point[p, d]
            for k in range(len(total)):  # over rows, which vectorises
                gap = values[k] * over - measured
                squared[k] += gap * gap
        for k in range(len(total)):
            distance = np.sqrt(squared[k])
            summed[k] += weight[p] * (1.0 + distance) * np.exp(-distance)
    for k in range(len(total)):
        total[k] += share * summed[k]


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


_FITTED = Coefficients("learning")

# Least rows of a class with constants of its own.
_LEAST_ROWS = 30
# Rounds of least squares in which rows count less the further off they are in log space, from _CLEAR on: throttled
# runs, and kernels that no part tells.
_ROUNDS, _CLEAR = 6, _FITTED.number("trend_clear")
# How much the constants are shrunk, per row: parts that grow together share what is theirs.
_SHRINKAGE = _FITTED.number("trend_shrinkage")
# Least share of a time that a sum of parts has, of which there is a logarithm.
_LEAST_SHARE = 1e-9


def fitted_trend(features: Singles, latency_s: Floats, axes: Axes) -> Trend:
    """Return the trend of `latency_s` [n] over `features` float32 [columns, n]; none of an operator without parts."""
    if not axes.part:
        return NO_TREND
    logs, code = features[list(axes.part)].astype(np.float64), features[list(axes.key)]
    present = logs > PRESENT
    amounts = np.where(present, np.exp(logs), 0.0)
    code[: len(amounts)] = present
    # A part that all rows have, or none, tells no classes.
    kept = np.flatnonzero((np.arange(len(code)) >= len(amounts)) | (np.ptp(code, axis=1) > 0.0))
    known, member_of, rows = np.unique(code[kept], axis=1, return_inverse=True, return_counts=True)
    large = np.flatnonzero(rows >= _LEAST_ROWS)
    classes = [np.flatnonzero(member_of.ravel() == k) for k in large]
    weight = [_weights(amounts, latency_s), *(_weights(amounts[:, here], latency_s[here]) for here in classes)]
    part, key = np.array(axes.part, dtype=np.int16), np.array(axes.key, dtype=np.int16)[kept]
    member = np.ascontiguousarray(known[:, large].T)
    return Trend(part, key, member, np.array(weight, dtype=np.float32), int((kept < len(amounts)).sum()))


def _weights(amounts: Floats, latency_s: Floats) -> Floats:
    """Return the seconds of one of each part, [parts], whose sum over `amounts` [parts, n] is near `latency_s` [n].

    What counts is the relative error.
    """
    from scipy.optimize import nnls  # noqa: PLC0415  (training alone needs it, and it takes memory)

    some = amounts.any(axis=1)
    relative, counts, weights = (amounts[some] / latency_s).T, np.ones(len(latency_s)), np.zeros(len(amounts))
    seconds = weights[some]
    for _ in range(_ROUNDS):
        rows = np.column_stack([relative, np.ones(len(counts))]) * counts[:, None]
        size = np.sqrt((rows[:, :-1] ** 2).mean(axis=0))
        shrinking = np.column_stack([np.eye(len(size)), np.zeros(len(size))]) * np.sqrt(_SHRINKAGE * len(counts))
        # The triangle has the same least squares as all rows.
        triangle = np.asarray(np.linalg.qr(np.concatenate([rows / [*size, 1.0], shrinking]), mode="r"))
        seconds = nnls(triangle[:, :-1], triangle[:, -1])[0] / size
        off = np.abs(np.log(np.maximum(relative @ seconds, _LEAST_SHARE)))
        counts = 1.0 / np.sqrt(np.maximum(off, _CLEAR))
    weights[some] = seconds
    return weights
