"""Stored operators, read by the million with binary COPY."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray
from sqlalchemy import Connection

from app.store.binary_copy import Cell, decode, values_of
from app.store.copying import copy_out
from app.store.operator_blocks import NO_TIME, Context, OperatorBlock
from app.store.sql_tables import OPERATOR_CONTEXTS, OPERATOR_MEASUREMENTS
from app.tables.arrays import Bytes

# Rows of all operators that are read at once.
FEW = 10_000
_C, _M = OPERATOR_CONTEXTS.c, OPERATOR_MEASUREMENTS.c


def load(
    connection: Connection,
    *,
    gpu_ids: Collection[str] | None = None,
    ops: Collection[str] | None = None,
    since: int | None = None,
    powered: bool = False,
) -> Iterator[tuple[OperatorBlock, Bytes]]:
    """Yield stored rows of the given GPUs and operators (default: all), by operator, dtype and fields, with their ids.

    With `since` only rows that were added after that revision; releases before 0.3 did not say when they added any.

    Reads only what predictors learn from: no spread, runs, clock, power or date. With `powered` it reads only rows with
    a power, and the power. Rows of a block are unordered.
    """
    alike: dict[tuple[str, str, tuple[str, ...]], _Alike] = {}
    added = 0
    for context_id, rows, op, dtype, fields, *rest in connection.execute(_contexts(gpu_ids, ops, since)):
        item = Context(op, dtype, tuple(fields), *rest)
        ids, contexts = alike.setdefault((op, dtype, item.fields), _Alike([], []))
        ids.append(context_id)
        contexts.append(item)
        added += rows
    groups = [alike[key] for key in sorted(alike)]
    if since is None or powered or added > FEW:
        for group in groups:
            found = _columns(connection, group.ids, group.width, since=since, powered=powered)
            yield _block(group, found), found["id"]
    elif groups:  # one by one, they would take more time on the way than in the database
        every = [context_id for group in groups for context_id in group.ids]
        found = _columns(connection, every, max(group.width for group in groups), since=since)
        for group in groups:
            mine = np.isin(found["context_id"], group.ids)
            part = {name: values[mine] for name, values in found.items()}
            yield _block(group, part), part["id"]


class _Alike(NamedTuple):
    """Contexts of one operator, dtype and fields, and their ids in the database."""

    ids: list[int]
    contexts: list[Context]

    @property
    def width(self) -> int:
        """Number of their fields."""
        return len(self.contexts[0].fields)


def _contexts(gpu_ids: Collection[str] | None, ops: Collection[str] | None, since: int | None) -> sa.Select[Any]:
    """Return the statement that reads the contexts of the wanted rows, with their numbers."""
    columns = [_C[name] for name in Context.__slots__]
    if since is None:
        statement = sa.select(_C.id, _C.measurements, *columns).where(_C.measurements > 0)
    else:
        mine = sa.select(_M.context_id, sa.func.count().label("rows")).where(_M.added > since).group_by(_M.context_id)
        new = mine.subquery()
        statement = sa.select(_C.id, new.c.rows, *columns).join(new, new.c.context_id == _C.id)
    if gpu_ids is not None:
        statement = statement.where(_C.gpu_id.in_(list(gpu_ids)))
    if ops is not None:
        statement = statement.where(_C.op.in_(list(ops)))
    return statement.order_by(_C.id)


def _columns(
    connection: Connection, ids: list[int], width: int, *, since: int | None, powered: bool = False
) -> dict[str, NDArray[Any]]:
    """Return the rows of the contexts in columns; their dimensions are filled up to `width` with NaN."""
    cells = [
        Cell("id", "uuid"),
        Cell("context_id", "int4"),
        Cell("latency_s", "float8"),
        Cell("dims", "float8", width),
        Cell("grid", "int4", 3),
        Cell("block", "int4", 3),
    ]
    column, condition = "", ""
    if powered:
        cells.append(Cell("power_w", "float8"))
        column, condition = ", power_w", " AND power_w > 0"
    if since is not None:
        condition += f" AND added > {since:d}"
    unknown = "'{-1,-1,-1}'::int4[]"
    filled = f"dims || array_fill('NaN'::float8, ARRAY[{width:d} - cardinality(dims)])"
    statement = (
        f"COPY (SELECT id, context_id, latency_s, {filled}, coalesce(grid, {unknown}), coalesce(block, {unknown})"
        f"{column} FROM operator_measurements WHERE context_id = ANY(%s){condition}) TO STDOUT (FORMAT BINARY)"
    )
    rows = decode(cells, copy_out(connection, statement, [ids]))
    return {cell.name: values_of(rows, cell) for cell in cells}


def _block(group: _Alike, columns: dict[str, NDArray[Any]]) -> OperatorBlock:
    """Return rows in columns as a block."""
    code = np.full(max(group.ids) + 1, -1, dtype=np.intp)
    code[group.ids] = np.arange(len(group.ids))
    absent = np.full(len(columns["id"]), np.nan)
    return OperatorBlock(
        tuple(group.contexts),
        code[columns["context_id"]],
        np.ascontiguousarray(columns["dims"][:, : group.width].T),
        columns["latency_s"],
        absent,
        absent,
        absent,
        columns.get("power_w", absent),
        np.full(len(absent), NO_TIME),
        _launched(columns["grid"]),
        _launched(columns["block"]),
    )


def _launched(extents: NDArray[Any]) -> NDArray[np.float64]:
    values = np.ascontiguousarray(extents.T, dtype=np.float64)
    values[values < 0] = np.nan
    return values
