"""Rows that passes write: whole columns at a time, and their place among the rows of a workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from app.graphs.build import DEFAULTS
from app.graphs.many import placed
from app.ops import OP_CODE
from app.tables.ops import OpTable, concatenate
from app.tables.workload import Floats, Ints, Workload


class Rows(NamedTuple):
    """Rows to be added: m of them.

    ops         OpTable of m rows
    source      int [m], the row of the workload that each stems from, whose name it takes
    block       int [m]
    order       float64 [m], where in its block a row stands; rows of the workload stand at their own number
    phase       code into PHASES
    overlapped  whether they are communication beside computation
    """

    ops: OpTable
    source: Ints
    block: Ints
    order: Floats
    phase: int
    overlapped: bool = False


def table_of(op: str, dtype: Ints, fields: Mapping[str, int], **columns: Floats | float) -> OpTable:
    """A mixed table of one family, a row per entry of `dtype`; columns left out are at their defaults."""
    many = {name: column for name, column in columns.items() if np.ndim(column) > 1}
    dims = np.full((1 + max(fields.values()), len(dtype)), np.nan)
    for name, default in DEFAULTS[op].items():
        dims[fields[name]] = np.nan if name in many else columns.get(name, default)
    kind = np.full(len(dtype), OP_CODE[op], dtype=np.intp)
    ops = OpTable(kind, dtype, np.zeros(len(dtype), dtype=np.intp), fields, dims)
    for name, column in many.items():
        ops = with_column(ops, name, column)
    return ops


def with_column(ops: OpTable, name: str, values: Floats | float) -> OpTable:
    """The rows with one column changed, to one number, [n] or [c, n]."""
    row = ops.fields[name]
    if np.ndim(values) > 1:
        ops = placed(ops, len(np.asarray(values)))
    if ops.place is None:
        dims = ops.dims.copy()
        dims[row] = values
        return replace(ops, dims=dims)
    c, place = ops.dims.shape[1], ops.place.copy()
    added = np.broadcast_to(values, (c, len(ops) if np.ndim(values) else 1)).T
    place[row] = len(ops.dims) + np.arange(len(added))
    return replace(ops, dims=np.concatenate([ops.dims, added]), place=place)


def stacked(tables: Sequence[OpTable]) -> OpTable:
    """Tables of one configuration or, some of them, of as many as the others (app/graphs/many.py)."""
    c = max((table.dims.shape[1] for table in tables if table.place is not None), default=0)
    return concatenate([placed(table, c) for table in tables] if c else tables)


def inserted(w: Workload, parts: Sequence[Rows]) -> Workload:
    """The workload and added rows, by block and order; added rows hold no weights and keep nothing."""
    if not parts:
        return w
    n, sizes = len(w), [len(part.source) for part in parts]
    source, block, order = (
        np.concatenate([first, *(getattr(part, name) for part in parts)])
        for name, first in (("source", w.source), ("block", w.block), ("order", np.arange(n, dtype=np.float64)))
    )
    phase = np.concatenate([w.phase, np.repeat(np.array([part.phase for part in parts], dtype=np.intp), sizes)])
    overlapped = np.concatenate([w.overlapped, np.repeat([part.overlapped for part in parts], sizes)])
    by = np.lexsort((order, block))
    place = np.empty(len(by), dtype=np.intp)
    place[by] = np.arange(len(by))

    def sized(values: Floats) -> Floats:
        rows = np.zeros((len(by), *values.shape[:-1]))
        rows[place[:n]] = values.T
        return rows.T

    return replace(
        w,
        ops=stacked([w.ops, *(part.ops for part in parts)]).take(by),
        names=tuple(w.names[k] for k in source[by].tolist()),
        phase=phase[by],
        source=place[source[by]],
        block=block[by],
        edges=place[w.edges],
        overlapped=overlapped[by],
        parameters=sized(w.parameters),
        weight_bytes=sized(w.weight_bytes),
        output_bytes=sized(w.output_bytes),
        saved_bytes=sized(w.saved_bytes),
        kv_bytes=sized(w.kv_bytes),
    )
