"""Rows that passes insert into a workload, as whole columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from app.networks.batched import as_batched
from app.networks.build import DEFAULTS
from app.ops import OP_CODE
from app.tables.arrays import Floats, Ints
from app.tables.ops import OpTable, concatenate
from app.tables.workload import Workload


class InsertedRows(NamedTuple):
    """m rows to insert.

    ops         OpTable of m rows
    source      int [m], the row of the workload that each derives from and whose name it takes
    block       int [m]
    order       float64 [m], position within the block; rows of the workload are at their own row number
    phase       code into PHASES
    overlapped  True for communication that overlaps computation
    """

    ops: OpTable
    source: Ints
    block: Ints
    order: Floats
    phase: int
    overlapped: bool = False


def table_of(op: str, dtype: Ints, fields: Mapping[str, int], **columns: Floats | float) -> OpTable:
    """Return a table of operator `op` with a row per entry of `dtype`; columns not given have their defaults."""
    batched = {name: column for name, column in columns.items() if np.ndim(column) > 1}
    dims = np.full((1 + max(fields.values()), len(dtype)), np.nan)
    for name, default in DEFAULTS[op].items():
        dims[fields[name]] = np.nan if name in batched else columns.get(name, default)
    kind = np.full(len(dtype), OP_CODE[op], dtype=np.intp)
    ops = OpTable(kind, dtype, np.zeros(len(dtype), dtype=np.intp), fields, dims)
    for name, column in batched.items():
        ops = with_column(ops, name, column)
    return ops


def with_column(ops: OpTable, name: str, values: Floats | float) -> OpTable:
    """Return the rows with one column replaced by a number, [n] or [c, n]."""
    row = ops.fields[name]
    if np.ndim(values) > 1:
        ops = as_batched(ops, len(np.asarray(values)))
    if ops.place is None:
        dims = ops.dims.copy()
        dims[row] = values
        return replace(ops, dims=dims)
    c, place = ops.dims.shape[1], ops.place.copy()
    added = np.broadcast_to(values, (c, len(ops) if np.ndim(values) else 1)).T
    place[row] = len(ops.dims) + np.arange(len(added))
    return replace(ops, dims=np.concatenate([ops.dims, added]), place=place)


def stacked(tables: Sequence[OpTable]) -> OpTable:
    """Return the tables one after another; batched ones (app/networks/batched.py) have equally many configurations."""
    c = max((table.dims.shape[1] for table in tables if table.place is not None), default=0)
    return concatenate([as_batched(table, c) for table in tables] if c else tables)


def inserted(w: Workload, parts: Sequence[InsertedRows]) -> Workload:
    """Return the workload with the rows inserted by block and order; they have no weights and save no tensors."""
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

    def spread(values: Floats) -> Floats:
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
        parameters=spread(w.parameters),
        weight_bytes=spread(w.weight_bytes),
        output_bytes=spread(w.output_bytes),
        saved_bytes=spread(w.saved_bytes),
        kv_bytes=spread(w.kv_bytes),
    )
