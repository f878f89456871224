"""A network in many configurations at once: figures that are arrays, where one configuration has numbers.

What is written for numbers runs on arrays as it is, once for all configurations; only where it asks whether a figure is
so, they may have to part. Of a Workload of c configurations, `ops.dims` is [fields, c, n], figures of rows are [c, n],
`repeats` is [c, blocks], each without c where all are alike; what rows are, their order and edges, all configurations
share. In memory the figures of a row lie together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.errors import BadInput
from app.ops.base import Work
from app.ops.kinds import kinds_of, work_of
from app.tables.ops import OpTable
from app.tables.workload import Workload

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
Bools = NDArray[np.bool_]


class Parting(Exception):
    """Configurations go different ways: those of `these`, bool [c], and the others."""

    def __init__(self, these: Bools) -> None:
        super().__init__()
        self.these = these


class Figures(np.ndarray[Any, np.dtype[Any]]):
    """A figure of each configuration, [c]; true or false where it is so of all, else they part."""

    def __bool__(self) -> bool:
        so = np.asarray(self) != 0
        if so.all() or not so.any():
            return bool(so[0])
        raise Parting(so)

    def __format__(self, spec: str) -> str:
        return format(self.flat[0], spec)  # a refusal names the first


def figures(values: Sequence[float] | Floats) -> Any:
    """A number where all are equal, else Figures: where a number is asked for, either does."""
    array = np.asarray(values)
    return array[0].item() if (array == array[0]).all() else array.view(Figures)


def array_of(values: Sequence[float | None]) -> Floats:
    """Numbers as float64 [n], None as NaN; where some of them are Figures, [n, c]."""
    try:
        return np.array(values, dtype=np.float64)
    except ValueError:
        most = max(np.size(value) for value in values if value is not None)
        array = np.empty((len(values), most))
        for row, value in zip(array, values, strict=True):
            row[:] = np.nan if value is None else value
        return array


def alike(so: Bools) -> Bools:
    """What is so of each row, bool [n], of bool [n] or [c, n]: in all configurations, else they part."""
    if so.ndim == 1:
        return so
    others = (so != so[0]).any(axis=1)
    if others.any():
        raise Parting(others)
    first: Bools = so[0]
    return first


class Lowered(NamedTuple):
    """Some of the configurations, by number, and their rows; None where they are refused."""

    of: Ints
    workload: Workload | None


def lowered(count: int, lower: Callable[[Ints], Workload]) -> Iterator[Lowered]:
    """Rows of `count` configurations, those that go the same way through `lower` together."""
    todo = [np.arange(count)]
    while todo:
        these = todo.pop()
        try:
            workload = lower(these)
        except Parting as parting:
            todo += [these[~parting.these], these[parting.these]]
        except BadInput:
            yield Lowered(these, None)
        else:
            yield Lowered(these, workload)


def flat(ops: OpTable) -> OpTable:
    """Rows of c configurations as rows of one table: those of row k are rows k c to k c + c - 1."""
    dims = ops.dims.swapaxes(1, -1).reshape(len(ops.dims), -1)
    kind, dtype, label = (np.repeat(code, dims.shape[1] // len(ops)) for code in (ops.kind, ops.dtype, ops.label))
    return OpTable(kind, dtype, label, ops.fields, dims)


def work(ops: OpTable) -> Work:
    """Work of every row, [n] or [c, n]."""
    each = flat(ops)
    rows = ops.dims.swapaxes(1, -1).shape[1:]
    return Work(*(figure.reshape(rows).T for figure in work_of(each, kinds_of(each))))


def spread(dims: Floats, c: tuple[int, ...]) -> Floats:
    """Figures of rows, [fields, n] or [fields, c, n], as [fields, *c, n]."""
    if not c:
        return dims
    spread: Floats = np.broadcast_to(dims if dims.ndim > 2 else dims[:, None], (len(dims), *c, dims.shape[-1]))
    return spread


def by_row(column: Floats) -> Floats:
    """Figures of rows, [n] or [c, n], as [n, 1] or [n, c]: beside times of rows on GPUs or in configurations."""
    return np.atleast_2d(column).T
