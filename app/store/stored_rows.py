"""Stored operators, read by the million with binary COPY."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from app.store.driver import Cell, Question, Rows, ask, copy_out, decode, values_of
from app.store.operator_blocks import NO_TIME, Context, OperatorBlock
from app.tables.arrays import Bytes

# Rows of all operators that are read at once.
FEW = 10_000


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
    groups, rows = _groups(connection, _contexts(gpu_ids, ops, since))
    if powered or rows > FEW:
        for group in groups:
            columns = _columns(connection, group.ids, group.width, since=since, powered=powered)
            yield _block(group, columns), columns["id"]
    elif groups:  # one by one, they would take more time on the way than in the database
        every = [context_id for group in groups for context_id in group.ids]
        columns = _columns(connection, every, max(group.width for group in groups), since=since, filled=True)
        for group in groups:
            mine = np.isin(columns["context_id"], group.ids)
            part = {name: values[mine] for name, values in columns.items()}
            yield _block(group, part), part["id"]


class _Alike(NamedTuple):
    """Contexts of one operator, dtype and fields, and their ids in the database."""

    ids: list[int]
    contexts: list[Context]

    @property
    def width(self) -> int:
        """Number of their fields."""
        return len(self.contexts[0].fields)


def _groups(connection: Connection, contexts: Question[Rows]) -> tuple[list[_Alike], int]:
    """Return the contexts by operator, dtype and fields, and the number of their rows."""
    alike: dict[tuple[str, str, tuple[str, ...]], _Alike] = {}
    added = 0
    (rows_of_contexts,) = ask(connection, contexts)
    for context_id, rows, op, dtype, fields, *rest in rows_of_contexts:
        item = Context(op, dtype, tuple(fields), *rest)
        group = alike.setdefault((op, dtype, item.fields), _Alike([], []))
        group.ids.append(context_id)
        group.contexts.append(item)
        added += rows
    return [alike[key] for key in sorted(alike)], added


def _contexts(gpu_ids: Collection[str] | None, ops: Collection[str] | None, since: int | None) -> Question[Rows]:
    """Ask for the contexts of the wanted rows: id, number of rows, and what they share.

    SQLAlchemy would take longer to write the statement than PostgreSQL takes to answer it.
    """
    shared = ", ".join(f"contexts.{name}" for name in Context.__slots__)
    rows, source, given = "contexts.measurements", "operator_contexts AS contexts", list[Any]()
    if since is not None:
        rows, source, given = "new.rows", f"operator_contexts AS contexts JOIN {_NEW}", [since]
    conditions = [f"{rows} > 0"]
    for name, allowed in (("gpu_id", gpu_ids), ("op", ops)):
        if allowed is not None:
            conditions.append(f"contexts.{name} = ANY(%s)")
            given.append(list(allowed))
    where = " AND ".join(conditions)
    statement = f"SELECT contexts.id, {rows}, {shared} FROM {source} WHERE {where} ORDER BY contexts.id"
    return Question(statement, given, list)


_NEW = (
    "(SELECT context_id, count(*) AS rows FROM operator_measurements WHERE added > %s GROUP BY context_id) AS new"
    " ON new.context_id = contexts.id"
)


def _columns(
    connection: Connection,
    ids: list[int],
    width: int,
    *,
    since: int | None,
    powered: bool = False,
    filled: bool = False,
) -> dict[str, NDArray[Any]]:
    """Return the rows of the contexts in columns: each has `width` dimensions, or is `filled` up to them with NaN."""
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
    dims = f"dims || array_fill('NaN'::float8, ARRAY[{width:d} - cardinality(dims)])" if filled else "dims"
    statement = (
        f"COPY (SELECT id, context_id, latency_s, {dims}, coalesce(grid, {unknown}), coalesce(block, {unknown})"
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
