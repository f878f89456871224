"""Trend of a GPU's residuals over the dimensions of a layer: a polynomial per class of rows, under the trees.

Trees are constant between two measured layers and beyond the last. Where the time of a layer depends on its dimensions
otherwise than the physics says, that is wrong for every layer not measured. The trend is quadratic in the logarithms of
a layer's dimensions, with coefficients linear in those of its load, so that it says nothing about the load alone.
Fitted in learning.trend_fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from app.ops import OPS
from app.predictors.auto.operators.models.features import EAGER, ROUTER_CLASS, STACK, code_dims, dim_rows
from app.runtime.compiled import compiled
from app.tables.arrays import Floats, Singles

# Part of a product of two logarithms that is a term, so that it is shrunk as much as terms of one.
_PRODUCT = 0.3
# Numbers in front of the arrays of a flat trend.
_HEAD = 5


class Axes(NamedTuple):
    """Rows of an operator's features: sizes of its configuration and of its load, and what tells classes (`Trend.key`).

    Without sizes of a configuration the operator has no trend.
    """

    layer: tuple[int, ...] = ()
    load: tuple[int, ...] = ()
    key: tuple[int, ...] = ()
    phases: int = 0

    @classmethod
    def of(cls, kind: int, *, product: bool) -> Self:
        """Return those of an operator, by its code; none of an operator whose times follow no trend."""
        op, rows, codes = OPS[kind], dim_rows(kind, product=product), code_dims(kind)
        if not op.trend:
            return cls()
        layer = tuple(row for name, row in rows.items() if name in op.configuration and name not in codes)
        load = tuple(row for name, row in rows.items() if row not in layer and name not in codes)
        code = tuple(row for name, row in rows.items() if name in codes)
        phase = (rows["query_length"],) if "query_length" in rows else ()
        return cls(layer, load, (*phase, *code, STACK, ROUTER_CLASS, EAGER), len(phase))


class Trend(NamedTuple):
    """A polynomial of d features for each of k classes of rows, and one for all other rows.

    column  int16 [d], rows of the features: first those of the layer, of which there are `layers`, then of the load
    place   float32 [3, d], what is subtracted from each; and the least and the largest value, to which it is clipped
    key     int16 [c], rows of the features that tell classes: codes, except the first `phases`, which are sizes of
            which counts whether they exceed 1
    member  float32 [k, c], values of the keys in each class
    weight  float32 [1 + k, terms], coefficients, first those of all other rows
    span    float32 [1 + k, 2], least and largest value, to which the polynomial is clipped
    """

    column: NDArray[np.int16]
    place: Singles
    key: NDArray[np.int16]
    member: Singles
    weight: Singles
    span: Singles
    layers: int = 0
    phases: int = 0

    def sum(self, features: Singles) -> Floats:
        """Return the log correction of rows with `features` float32 [columns, n], float64 [n]."""
        total = np.zeros(features.shape[1])
        add_trend(np.ascontiguousarray(features), self.flat(), 1.0, total)
        return total

    def flat(self) -> Singles:
        """Return all numbers in one array, as `add_trend` reads them; empty for no trend."""
        if not len(self.column):
            return np.empty(0, np.float32)
        sizes = (len(self.column), self.layers, len(self.key), self.phases, len(self.member))
        return np.concatenate([sizes, *(np.ravel(part) for part in self[:-2])], dtype=np.float32, casting="same_kind")

    def state(self) -> dict[str, Any]:
        """Return the fields as a dictionary of arrays."""
        return self._asdict()

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the trend of a `state`."""
        return cls(*(state[name] for name in cls._fields))


_NO_COLUMNS, _NO_NUMBERS = np.empty(0, np.int16), np.empty((0, 0), np.float32)
NO_TREND = Trend(_NO_COLUMNS, _NO_NUMBERS, _NO_COLUMNS, _NO_NUMBERS, _NO_NUMBERS, _NO_NUMBERS)


@compiled
def terms_of(dims: int, layers: int) -> int:
    """Return the number of terms of `dims` features, the first `layers` of them of the layer."""
    return 1 + layers + layers * (layers + 1) // 2 + layers * (dims - layers)


@compiled
def fill_terms_at(place: Floats, layers: int, terms: Floats) -> None:
    """Fill the terms of a row at `place` [d]: 1, the layer's features, and their products with one another and all."""
    at = 1 + layers
    terms[0] = 1.0
    for i in range(layers):
        terms[1 + i] = place[i]
        for j in range(i, len(place)):
            terms[at] = _PRODUCT * place[i] * place[j]
            at += 1


@compiled
def class_of(features: Singles, row: int, key: Singles, phases: int, member: Singles) -> int:
    """Return the class of a row, counted from 1; 0 where none is like it."""
    for k in range(len(member)):
        alike = True
        for c in range(len(key)):
            value = features[int(key[c]), row]
            alike = alike and (value > 0.0 if c < phases else value) == member[k, c]
        if alike:
            return k + 1
    return 0


@compiled
def add_trend(features: Singles, flat: Singles, share: float, total: Floats) -> None:
    """Add `share` times the trend, as `Trend.flat` returns it, to total [m], for features [columns, m]."""
    if not len(flat):
        return
    dims, layers, keys, phases, classes = int(flat[0]), int(flat[1]), int(flat[2]), int(flat[3]), int(flat[4])
    count, at = terms_of(dims, layers), _HEAD + 4 * dims
    column, center, low, high = flat[_HEAD:at].reshape(4, dims)
    key, member = flat[at : at + keys], flat[at + keys : at + keys * (1 + classes)].reshape(classes, keys)
    at += keys * (1 + classes)
    weight = flat[at : at + (1 + classes) * count].reshape(1 + classes, count)
    span = flat[at + (1 + classes) * count :].reshape(1 + classes, 2)
    place, terms = np.empty(dims), np.empty(count)
    for n in range(len(total)):
        for d in range(dims):
            place[d] = min(max(features[int(column[d]), n], low[d]), high[d]) - center[d]
        fill_terms_at(place, layers, terms)
        k, value = class_of(features, n, key, phases, member), 0.0
        for term in range(count):
            value += weight[k, term] * terms[term]
        total[n] += share * min(max(value, span[k, 0]), span[k, 1])
