"""Rows that passes write: whole columns at a time, and their place among the rows of a workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from app.graphs.build import DEFAULTS
from app.graphs.many import spread
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
    lead = np.broadcast_shapes(dtype.shape, *(np.shape(column) for column in columns.values()))[:-1]
    dims = np.full((1 + max(fields.values()), len(dtype), *lead), np.nan).swapaxes(1, -1)
    for name, default in DEFAULTS[op].items():
        dims[fields[name]] = columns.get(name, default)
    kind = np.full(len(dtype), OP_CODE[op], dtype=np.intp)
    return OpTable(kind, dtype, np.zeros(len(dtype), dtype=np.intp), fields, dims)


def with_column(ops: OpTable, name: str, values: Floats | float) -> OpTable:
    """The rows with one column changed."""
    dims = ops.dims.copy()
    dims[ops.fields[name]] = values
    return OpTable(ops.kind, ops.dtype, ops.label, ops.fields, dims)


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
        ops=_concatenated([w.ops, *(part.ops for part in parts)]).take(by),
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


def _concatenated(tables: Sequence[OpTable]) -> OpTable:
    """Tables of one configuration or, some of them, of as many as the others (app/graphs/many.py)."""
    c = max(table.dims.shape[1:-1] for table in tables)
    return concatenate([replace(table, dims=spread(table.dims, c)) for table in tables])
