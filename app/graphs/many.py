"""A network in many configurations at once: figures that are arrays, where one configuration has numbers.

What is written for numbers runs on arrays as it is, once for all configurations; only where it asks whether a figure is
so, they may have to part. Of a Workload of c configurations, figures of rows are [c, n], `repeats` is [c, blocks], each
without c where all are alike; what rows are, their order and edges, all configurations share. In memory the figures of
a row lie together; of operators, which have many columns and mostly the same figures in them, `ops.place` says which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.errors import BadInput
from app.ops.base import Work
from app.ops.kinds import kinds_of, work_of
from app.predictors.operator_digests import mixed
from app.runtime.compiled import compiled
from app.tables.ops import OpTable
from app.tables.workload import Workload

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
Bools = NDArray[np.bool_]

# Bits of a number that tells rows of several families apart: the family's, above those of a digest.
_OF_FAMILY, _OF_DIGEST = np.uint64(8), np.uint64(56)


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
    array, which = differing(values)
    return array if which is None else array[which]


def differing(values: Sequence[float | None]) -> tuple[Floats, Ints | None]:
    """As `array_of`; where some are Figures, those that differ, [d, c], and which of them each is."""
    try:
        return np.array(values, dtype=np.float64), None
    except ValueError:
        number: dict[Any, int] = {}
        which = [
            number.setdefault((id(value),) if isinstance(value, np.ndarray) else value, k)
            for k, value in enumerate(values)
        ]
        first, of = np.unique(which, return_inverse=True)
        some = [values[k] for k in first.tolist()]
        array = np.empty((len(some), max(np.size(value) for value in some if value is not None)))
        for row, value in zip(array, some, strict=True):
            row[:] = np.nan if value is None else value
        return array, of


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


class Once(NamedTuple):
    """Rows of which no two are alike in all configurations but for their counts, u of them.

    table  of one configuration after another: those of row k are rows k c to k c + c - 1
    of     int [n], which of them every row is
    c      configurations
    """

    table: OpTable
    of: Ints
    c: int = 1

    def rows(self, figure: NDArray[Any]) -> NDArray[Any]:
        """A figure of `table` as one of every row, [n, c]."""
        return figure.reshape(-1, self.c)[self.of]


def once(ops: OpTable) -> Once:
    """Rows of c configurations, those that are alike once, family by family; of one, its rows."""
    if ops.place is None:
        return Once(ops, np.arange(len(ops)))
    figure = np.zeros(len(ops.dims), dtype=np.uint64)
    used = np.bincount(ops.place.ravel(), minlength=len(figure)) > 0
    figure[used] = _digests(ops.dims[used].view(np.uint64))
    words = np.vstack([ops.dtype.astype(np.uint64), figure[ops.place]])
    words[1 + ops.fields["count"]] = 0
    digest = _digests(np.ascontiguousarray(words.T))
    by_family = (ops.kind.astype(np.uint64) << _OF_DIGEST) + (digest >> _OF_FAMILY)
    _, first, of = np.unique(by_family, return_index=True, return_inverse=True)
    rows, c = ops.take(first), ops.dims.shape[1]
    kind, dtype, label = (np.repeat(code, c) for code in (rows.kind, rows.dtype, rows.label))
    dims = ops.dims[rows.place].reshape(len(ops.place), -1)
    return Once(OpTable(kind, dtype, label, ops.fields, dims), of, c)


@compiled
def _digests(rows: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Of each row, [n] of [n, words]: two that share one are as good as alike (app.predictors.operator_digests)."""
    digests = np.zeros(len(rows), dtype=np.uint64)
    for k in range(rows.shape[0]):
        for word in rows[k]:
            digests[k] = mixed(digests[k], word)
    return digests


def work(ops: OpTable) -> Work:
    """Work of every row, [n] or [c, n]."""
    if ops.place is None:
        return work_of(ops, kinds_of(ops))
    each = once(ops)
    return Work(*(each.rows(figure).T for figure in work_of(each.table, kinds_of(each.table))))


def repeated(w: Workload, of: Ints) -> Workload:
    """Rows of configurations, each as often as `of`, [c], names it."""
    many = ("parameters", "weight_bytes", "output_bytes", "saved_bytes", "kv_bytes", "repeats")
    figures = {name: getattr(w, name).T.take(of, axis=1).T for name in many if getattr(w, name).ndim > 1}
    ops = w.ops if w.ops.place is None else replace(w.ops, dims=w.ops.dims.take(of, axis=1))
    return replace(w, ops=ops, **figures)


def placed(ops: OpTable, c: int) -> OpTable:
    """The rows as those of c configurations."""
    if ops.place is not None:
        return ops
    figures, place = np.unique(ops.dims, return_inverse=True)
    return replace(ops, dims=np.repeat(figures[:, None], c, axis=1), place=place.reshape(ops.dims.shape))


def by_row(column: Floats) -> Floats:
    """Figures of rows, [n] or [c, n], as [n, 1] or [n, c]: beside times of rows on GPUs or in configurations."""
    return np.atleast_2d(column).T
