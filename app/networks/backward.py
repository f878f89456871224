"""Backward of each operator, expressed where possible in forward operators, which predictors have learned.

Each operator has its rule (`Op.backward`, app.ops.gradient), which follows PyTorch's autograd: a matrix product runs
two products and sums the bias gradient over rows; an operator without a rule runs as itself with `backward` 1. Where
several rows read one tensor, their gradients are added (`training_pass`).

A rule maps each column of a step to a column of the forward row, so that all steps of all rows are one gather.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from app.networks.batched import as_batched, same_in_all
from app.networks.build import DEFAULTS
from app.ops import OP_CODE, OPS
from app.ops.depthwise import is_depthwise
from app.ops.gradient import DERIVED
from app.tables.arrays import Bools, Floats, Ints
from app.tables.ops import DTYPE_BYTES, OUTPUT_BYTES, OpTable

# Constant columns of steps; the last (NaN) fills the columns that an operator does not have.
_DEFAULTS = {value for row in DEFAULTS.values() for value in row.values() if value is not None}
_NUMBERS = (*sorted(value for value in _DEFAULTS if np.isfinite(value)), np.nan)
_STEPS = [(kind, step) for kind, op in enumerate(OPS) for step in op.backward]
_COUNT = np.bincount([kind for kind, _ in _STEPS], minlength=len(OPS))
_FIRST = np.cumsum(_COUNT) - _COUNT
_KIND = np.array([kind if step.op is None else OP_CODE[step.op] for kind, step in _STEPS])
_NEEDS = np.array([step.needs for _, step in _STEPS])


class Forward(NamedTuple):
    """n forward rows.

    ops        OpTable of n rows
    producers  int [n], number of rows of the same block that feed each row
    learning   bool [n], True if the output has a gradient
    fed        bool [n], True if the input needs a gradient (the network's input does not)
    bias       bool [n], True if the row adds a bias that is trained
    trained    bool [n], True if the row's weights are trained
    output     float64 [n] or [c, n], bytes that a launch writes
    unfused    bool [n], True if PyTorch's own kernels run the row, one after the other
    """

    ops: OpTable
    producers: Ints
    learning: Bools
    fed: Bools
    bias: Bools
    trained: Bools
    output: Floats
    unfused: Bools


class Backward(NamedTuple):
    """m rows of backward.

    source  int [m], the forward row of each
    number  int [m], its position among the steps of that row, from 0
    """

    ops: OpTable
    source: Ints
    number: Ints


def backward(forward: Forward) -> Backward:
    """Return the steps of every row that has a gradient, ordered by forward row."""
    ops = forward.ops
    count = np.where(forward.learning, _COUNT[ops.kind], 0)
    source = np.repeat(np.arange(len(ops)), count)
    number = np.arange(len(source)) - np.repeat(np.cumsum(count) - count, count)
    step = _FIRST[ops.kind[source]] + number
    own = same_in_all(is_depthwise(ops))
    needs = (np.ones(len(ops), dtype=np.bool_), forward.fed, forward.bias, forward.producers > 1, forward.trained)
    met = np.array([*needs, forward.unfused, own, forward.fed & ~own, forward.trained & ~own])
    runs = met[_NEEDS[step], source]
    source, number, step = source[runs], number[runs], step[runs]
    figures, places = _figures(forward), _places(tuple(ops.fields.items()))[step].T
    kind, dtype, label = _KIND[step], ops.dtype[source], ops.label[source]
    if figures.place is None:
        rows = OpTable(kind, dtype, label, ops.fields, figures.dims[places, source])
    else:
        rows = OpTable(kind, dtype, label, ops.fields, figures.dims, figures.place[places, source])
    return Backward(rows, source, number)


def _figures(forward: Forward) -> OpTable:
    """Return the rows with DERIVED and _NUMBERS appended to their columns."""
    ops = forward.ops
    elements, count = ops.column("b") * ops.column("h"), ops.column("count")
    derived = (
        np.maximum(forward.output, 1.0),
        elements * (DTYPE_BYTES + OUTPUT_BYTES)[ops.dtype],
        count * np.clip(forward.producers, 1, 2),
        count * 2.0,
    )
    n, numbers = len(ops), np.array(_NUMBERS)[:, None]
    if ops.place is None and forward.output.ndim == 1:
        return replace(ops, dims=np.concatenate([ops.dims, derived, np.repeat(numbers, n, axis=1)]))
    c = len(forward.output) if ops.place is None else ops.dims.shape[1]
    ops = as_batched(ops, c)
    assert ops.place is not None
    added = [np.broadcast_to(column, (c, n)).T for column in derived]
    at = len(ops.dims) + np.arange(len(derived) * n).reshape(-1, n)
    constant = np.broadcast_to(len(ops.dims) + at.size + np.arange(len(numbers))[:, None], (len(numbers), n))
    dims = np.concatenate([ops.dims, *added, np.repeat(numbers, c, axis=1)])
    return replace(ops, dims=dims, place=np.concatenate([ops.place, at, constant]))


@lru_cache(maxsize=256)
def _places(fields: tuple[tuple[str, int], ...]) -> Ints:
    """Return the row of `_figures` that holds each column of each step, int [steps, columns]."""
    row_of = dict(fields)
    columns = 1 + max(row_of.values())
    figure_of: dict[str | float | None, int] = {name: columns + k for k, name in enumerate(DERIVED)}
    figure_of |= {number: columns + len(DERIVED) + k for k, number in enumerate(_NUMBERS)}
    absent = columns + len(DERIVED) + len(_NUMBERS) - 1
    places = np.empty((len(_STEPS), columns), dtype=np.intp)
    for row, (_, step) in zip(places, _STEPS, strict=True):
        row[:] = np.arange(columns) if step.op is None else absent
        for name, default in (DEFAULTS[step.op] if step.op else {}).items():
            row[row_of[name]] = figure_of.get(default, absent)
        for name, given in step.columns.items():
            row[row_of[name]] = figure_of[given] if given in figure_of else row_of[str(given)]
    return places
