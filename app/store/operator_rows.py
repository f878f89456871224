"""Stored operators: read by the million with binary COPY, listed by page, and deleted."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray
from sqlalchemy import Connection
from sqlalchemy.dialects.postgresql import ARRAY

from app.store import revision, uploads
from app.store.driver import Cell, Question, Rows, ask, copy_out, values_of
from app.store.operator_blocks import ID_BYTES, NO_TIME, Context, OperatorBlock
from app.store.operators import added_after, agreeing_contexts
from app.store.sql_tables import OPERATOR_CONTEXTS, OPERATOR_MEASUREMENTS
from app.store.uploads import Filters, Page
from app.tables.arrays import Bytes

# Rows of all operators that are read at once, and the most of a block.
FEW = 10_000
_BLOCK = 10_000


def load(
    connection: Connection,
    *,
    gpu_ids: Collection[str] | None = None,
    ops: Collection[str] | None = None,
    since: int | None = None,
    powered: bool = False,
) -> Iterator[tuple[OperatorBlock, Bytes]]:
    """Yield stored rows of the given GPUs and operators (default: all), by operator, dtype and fields, with their ids.

    A block has at most `_BLOCK` rows. The connection is in use until the last one.

    With `since` only rows that were added after that revision; releases before 0.3 did not say when they added any.

    Reads only what predictors learn from: no spread, runs, clock, power or date. With `powered` it reads only rows with
    a power, and the power. Rows of a block are unordered.
    """
    added = None if since is None else added_after(connection, since)
    groups, rows = _groups(connection, _contexts_with_rows(gpu_ids, ops, added))
    if powered or rows > FEW:
        for group in groups:
            for columns in _columns(connection, group.ids, group.width, added=added, powered=powered):
                yield _block(group, columns), columns["id"]
    elif groups:  # one by one, they would take more time on the way than in the database
        every = [context_id for group in groups for context_id in group.ids]
        width = max(group.width for group in groups)
        for columns in _columns(connection, every, width, added=added, filled=True):
            for group in groups:
                mine = np.isin(columns["context_id"], group.ids)
                part = {name: values[mine] for name, values in columns.items()}
                if mine.any():
                    yield _block(group, part), part["id"]


class _Alike(NamedTuple):
    """Contexts of one operator, dtype and fields, by their ids in the database."""

    contexts: dict[int, Context]

    @property
    def ids(self) -> list[int]:
        """Their ids."""
        return [*self.contexts]

    @property
    def width(self) -> int:
        """Number of their fields."""
        return len(next(iter(self.contexts.values())).fields)


def _groups(connection: Connection, contexts: Question[Rows]) -> tuple[list[_Alike], int]:
    """Return the contexts by operator, dtype and fields, and the number of their rows."""
    alike: dict[tuple[str, str, tuple[str, ...]], _Alike] = {}
    added = 0
    (rows_of_contexts,) = ask(connection, contexts)
    for context_id, rows, op, dtype, fields, *rest in rows_of_contexts:
        item = Context(op, dtype, tuple(fields), *rest)
        alike.setdefault((op, dtype, item.fields), _Alike({})).contexts[context_id] = item
        added += rows
    return [alike[key] for key in sorted(alike)], added


def _contexts_with_rows(
    gpu_ids: Collection[str] | None, ops: Collection[str] | None, added: str | None
) -> Question[Rows]:
    """Ask for the contexts of the wanted rows: id, number of rows, and what they share; `added` is a condition on rows.

    SQLAlchemy would take longer to write the statement than PostgreSQL takes to answer it.
    """
    shared = ", ".join(f"contexts.{name}" for name in Context.__slots__)
    rows, source, given = "contexts.measurements", "operator_contexts AS contexts", list[Any]()
    if added is not None:
        rows, source = "new.rows", f"operator_contexts AS contexts JOIN {_NEW.format(added)}"
    conditions = [f"{rows} > 0"]
    for name, allowed in (("gpu_id", gpu_ids), ("op", ops)):
        if allowed is not None:
            conditions.append(f"contexts.{name} = ANY(%s)")
            given.append(list(allowed))
    where = " AND ".join(conditions)
    statement = f"SELECT contexts.id, {rows}, {shared} FROM {source} WHERE {where} ORDER BY contexts.id"
    return Question(statement, given, list)


_NEW = (
    "(SELECT context_id, count(*) AS rows FROM operator_measurements WHERE {} GROUP BY context_id) AS new"
    " ON new.context_id = contexts.id"
)


def _columns(
    connection: Connection,
    ids: list[int],
    width: int,
    *,
    added: str | None,
    powered: bool = False,
    filled: bool = False,
) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield the rows of the contexts in columns: each has `width` dimensions, or is `filled` up to them with NaN."""
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
    if added is not None:
        condition += f" AND {added}"
    unknown = "'{-1,-1,-1}'::int4[]"
    dims = f"dims || array_fill('NaN'::float8, ARRAY[{width:d} - cardinality(dims)])" if filled else "dims"
    statement = (
        f"COPY (SELECT id, context_id, latency_s, {dims}, coalesce(grid, {unknown}), coalesce(block, {unknown})"
        f"{column} FROM operator_measurements WHERE context_id = ANY(%s){condition}) TO STDOUT (FORMAT BINARY)"
    )
    for rows in copy_out(connection, statement, [ids], cells, _BLOCK):
        yield {cell.name: values_of(rows, cell) for cell in cells}


def _block(group: _Alike, columns: dict[str, NDArray[Any]]) -> OperatorBlock:
    """Return rows in columns as a block, with those of the contexts that they have."""
    ids, context = np.unique(columns["context_id"], return_inverse=True)
    n = len(columns["id"])
    absent = np.broadcast_to(np.nan, n)
    return OperatorBlock(
        tuple(group.contexts[context_id] for context_id in ids.tolist()),
        context,
        np.ascontiguousarray(columns["dims"][:, : group.width].T),
        columns["latency_s"],
        absent,
        absent,
        absent,
        columns.get("power_w", absent),
        np.broadcast_to(NO_TIME, n),
        _launched(columns["grid"]),
        _launched(columns["block"]),
    )


def _launched(extents: NDArray[Any]) -> NDArray[np.float64]:
    values = np.ascontiguousarray(extents.T, dtype=np.float64)
    values[values < 0] = np.nan
    return values


# With fewer matching rows than this, they are selected by context before sorting.
_RARE = 20_000
_C, _M = OPERATOR_CONTEXTS.c, OPERATOR_MEASUREMENTS.c


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredOperator:
    """One stored row, in seconds, Hz and W; `dims` are those of `context.fields`, `id` has 32 hexadecimal digits."""

    id: str
    context: Context
    dims: tuple[float, ...]
    latency_s: float
    latency_std_s: float | None
    runs: int | None
    clock_hz: float | None
    power_w: float | None
    measured_at: datetime | None
    grid: list[int] | None
    block: list[int] | None
    upload_id: int | None
    created_at: datetime


def page(connection: Connection, filters: Page) -> list[StoredOperator]:
    """Return the rows of a page; `name` is the operator, ids are hexadecimal."""
    contexts, rows = _matching_contexts(connection, filters)
    if not contexts:
        return []
    mine = uploads.in_uploads(filters, _M.upload_id)
    statement = sa.select(OPERATOR_MEASUREMENTS).where(_M.context_id.in_(contexts), mine)
    if filters.after is not None:
        statement = statement.where(_M.id > str(uuid.UUID(filters.after[: 2 * ID_BYTES])))
    # Scanning all ids for rare rows takes seconds.
    rare = rows < _RARE or filters.upload is not None or filters.key is not None
    matching = sa.select(statement.offset(0).subquery()) if rare else statement
    ordered = matching.order_by(sa.literal_column("id")).limit(filters.limit)
    return [_row(row, contexts) for row in connection.execute(ordered).mappings()]


def _matching_contexts(connection: Connection, filters: Page) -> tuple[dict[int, Context], int]:
    """Return the contexts, by database id, that match all filters, and the number of their rows."""
    statement = sa.select(_C.measurements, _C.id, *(_C[field] for field in Context.__slots__))
    statement = statement.where(agreeing_contexts(filters))
    contexts, total = dict[int, Context](), 0
    for rows, context_id, op, dtype, fields, *rest in connection.execute(statement):
        contexts[context_id] = Context(op, dtype, tuple(fields), *rest)
        total += rows
    return contexts, total


def _row(row: sa.RowMapping, contexts: Mapping[int, Context]) -> StoredOperator:
    own = {field: row[field] for field in StoredOperator.__slots__ if field not in ("id", "context", "dims")}
    return StoredOperator(id=row["id"].hex, context=contexts[row["context_id"]], dims=tuple(row["dims"]), **own)


def remove(connection: Connection, filters: Filters, *, dry_run: bool = False) -> dict[str, int]:
    """Delete matching rows; return their numbers by GPU id. A dry run only counts."""
    if not dry_run:
        revision.lock(connection)  # rows added to a context during its removal would be orphaned
    by_upload = filters.upload is not None or filters.key is not None
    gone = (_remove_rows if by_upload else _remove_contexts)(connection, filters, dry_run=dry_run)
    if gone and not dry_run:
        revision.bump(connection, "removed")
    return {gpu: rows for gpu, rows in gone.items() if rows}


def _remove_contexts(connection: Connection, filters: Filters, *, dry_run: bool) -> Counter[str]:
    """Delete whole contexts with their rows."""
    columns = (_C.id, _C.gpu_id, _C.measurements)
    statement = sa.select(*columns) if dry_run else sa.delete(OPERATOR_CONTEXTS).returning(*columns)
    gone, ids = Counter[str](), list[int]()
    for context_id, gpu, rows in connection.execute(statement.where(agreeing_contexts(filters))):
        gone[gpu] += rows
        ids.append(context_id)
    if ids and not dry_run:
        connection.execute(
            sa.delete(OPERATOR_MEASUREMENTS).where(_M.context_id == sa.any_(sa.literal(ids, ARRAY(sa.Integer))))
        )
    return gone


def _remove_rows(connection: Connection, filters: Filters, *, dry_run: bool) -> Counter[str]:
    """Delete the rows of uploads from their contexts."""
    mine = agreeing_contexts(filters) & uploads.in_uploads(filters, _M.upload_id)
    counted = sa.select(_C.id, _C.gpu_id, sa.func.count()).join(OPERATOR_MEASUREMENTS, _M.context_id == _C.id)
    gone = Counter[str]()
    for context_id, gpu, rows in connection.execute(counted.where(mine).group_by(_C.id, _C.gpu_id)).all():
        gone[gpu] += rows
        if not dry_run:
            theirs = (_M.context_id == context_id) & uploads.in_uploads(filters, _M.upload_id)
            connection.execute(sa.delete(OPERATOR_MEASUREMENTS).where(theirs))
            left = sa.update(OPERATOR_CONTEXTS).where(_C.id == context_id)
            connection.execute(left.values(measurements=_C.measurements - rows))
    return gone
