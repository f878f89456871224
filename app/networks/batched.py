"""Batched configurations: one network in c configurations (batch sizes, sequence lengths, widths) lowered at once.

Code written for numbers runs unchanged on arrays with one entry per configuration. Only a condition on such an array
may force a split into two groups (`Diverged`). In a Workload of c configurations, row figures are [c, n] and `repeats`
is [c, blocks], each without the axis c where all configurations agree; operators, their order and edges are shared.
A row's figures are contiguous in memory. Operator columns, which mostly repeat the same values, are stored once and
indexed by `ops.place`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.errors import BadInput
from app.ops import kinds_of, work_of
from app.ops.figures import Work
from app.predictors.operator_digests import mixed
from app.runtime.compiled import compiled
from app.tables.arrays import Bools, Floats, Ints
from app.tables.ops import OpTable
from app.tables.workload import Workload

# Bits of a sort key: the operator family's, above those of the row's digest.
_OF_FAMILY, _OF_DIGEST = np.uint64(8), np.uint64(56)


class Diverged(Exception):
    """A condition holds for some configurations only; `mask`, bool [c], splits them in two groups."""

    def __init__(self, mask: Bools) -> None:
        super().__init__()
        self.mask = mask


class PerConfiguration(np.ndarray[Any, np.dtype[Any]]):
    """One number per configuration, [c]. Its truth value raises Diverged unless all configurations agree."""

    def __bool__(self) -> bool:
        holds = np.asarray(self) != 0
        if holds.all() or not holds.any():
            return bool(holds[0])
        raise Diverged(holds)

    def __format__(self, spec: str) -> str:
        return format(self.flat[0], spec)  # error messages name the first configuration's


def per_configuration(values: Sequence[float] | Floats) -> Any:
    """Return a plain number if all values are equal, else a PerConfiguration; both serve where a number is expected."""
    array = np.asarray(values)
    return array[0].item() if (array == array[0]).all() else array.view(PerConfiguration)


def array_of(values: Sequence[float | None]) -> Floats:
    """Return the numbers as float64 [n], or [n, c] if any of them is a PerConfiguration; None becomes NaN."""
    array, which = distinct_values(values)
    return array if which is None else array[which]


# Numbers converted at a time, for which other threads wait.
_STEP = 16_384


def in_steps(values: Sequence[Any], dtype: type[Any]) -> NDArray[Any]:
    """Return a list as an array, [n]; of arrays of one length [n, c]. Raises ValueError for other arrays."""
    return np.concatenate(
        [np.array(values[at : at + _STEP], dtype=dtype) for at in range(0, max(len(values), 1), _STEP)]
    )


def distinct_values(values: Sequence[float | None]) -> tuple[Floats, Ints | None]:
    """Return `array_of(values)` and None; with a PerConfiguration, the d distinct values [d, c] and an index [n]."""
    try:
        return in_steps(values, np.float64), None
    except ValueError:
        number: dict[Any, int] = {}
        which = [
            number.setdefault((id(value),) if isinstance(value, np.ndarray) else value, k)
            for k, value in enumerate(values)
        ]
        first, of = np.unique(which, return_inverse=True)
        distinct = [values[k] for k in first.tolist()]
        array = np.empty((len(distinct), max(np.size(value) for value in distinct if value is not None)))
        for row, value in zip(array, distinct, strict=True):
            row[:] = np.nan if value is None else value
        return array, of


def same_in_all(condition: Bools) -> Bools:
    """Return a condition on rows, bool [n] or [c, n], as bool [n]; Diverged if configurations disagree."""
    if condition.ndim == 1:
        return condition
    others = (condition != condition[0]).any(axis=1)
    if others.any():
        raise Diverged(others)
    first: Bools = condition[0]
    return first


class LoweredGroup(NamedTuple):
    """Configurations of one group, int, and their workload; None if they are refused."""

    of: Ints
    workload: Workload | None


def lower_groups(count: int, lower: Callable[[Ints], Workload]) -> Iterator[LoweredGroup]:
    """Yield the workloads of `count` configurations, in groups that take the same path through `lower`."""
    todo = [np.arange(count)]
    while todo:
        group = todo.pop()
        try:
            workload = lower(group)
        except Diverged as diverged:
            todo += [group[~diverged.mask], group[diverged.mask]]
        except BadInput:
            yield LoweredGroup(group, None)
        else:
            yield LoweredGroup(group, workload)


class UniqueRows(NamedTuple):
    """u distinct rows of c configurations; rows that differ only in `count` are the same.

    table  u c rows; distinct row k in configuration j is row k c + j
    of     int [n], the distinct row of every row
    c      configurations
    """

    table: OpTable
    of: Ints
    c: int = 1

    def rows(self, figure: NDArray[Any]) -> NDArray[Any]:
        """Return a figure of `table`'s rows, [u c], expanded to every row, [n, c]."""
        return figure.reshape(-1, self.c)[self.of]


def unique_rows(ops: OpTable) -> UniqueRows:
    """Return the distinct rows of c configurations, by operator family; of a single configuration, all its rows."""
    if ops.place is None:
        return UniqueRows(ops, np.arange(len(ops)))
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
    return UniqueRows(OpTable(kind, dtype, label, ops.fields, dims), of, c)


@compiled
def _digests(rows: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a 64-bit digest of each row, [n] of [n, words]; equal digests are taken for equal rows."""
    digests = np.zeros(len(rows), dtype=np.uint64)
    for k in range(rows.shape[0]):
        for word in rows[k]:
            digests[k] = mixed(digests[k], word)
    return digests


def work_of_rows(ops: OpTable) -> Work:
    """Return the work of every row, [n] or [c, n]."""
    if ops.place is None:
        return work_of(ops, kinds_of(ops))
    each = unique_rows(ops)
    return Work(*(each.rows(figure).T for figure in work_of(each.table, kinds_of(each.table))))


def expanded(w: Workload, of: Ints) -> Workload:
    """Return the workload with configuration `of[j]` as its j-th, int [c]; entries may repeat."""
    batched = ("parameters", "weight_bytes", "output_bytes", "saved_bytes", "kv_bytes", "repeats")
    figures = {name: getattr(w, name).T.take(of, axis=1).T for name in batched if getattr(w, name).ndim > 1}
    ops = w.ops if w.ops.place is None else replace(w.ops, dims=w.ops.dims.take(of, axis=1))
    return replace(w, ops=ops, **figures)


def as_batched(ops: OpTable, c: int) -> OpTable:
    """Return the rows in the form of c equal configurations."""
    if ops.place is not None:
        return ops
    figures, place = np.unique(ops.dims, return_inverse=True)
    return replace(ops, dims=np.repeat(figures[:, None], c, axis=1), place=place.reshape(ops.dims.shape))
