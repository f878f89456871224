"""Listing of measured operators by page, one row each, and their deletion."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.dialects.postgresql import ARRAY

from app.store import revision, uploads
from app.store.measurement_filters import Filters, Page
from app.store.operator_blocks import ID_BYTES, Context
from app.store.operators import agreeing_contexts
from app.store.sql_tables import OPERATOR_CONTEXTS, OPERATOR_MEASUREMENTS

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
    contexts, rows = _contexts(connection, filters)
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


def _contexts(connection: Connection, filters: Page) -> tuple[dict[int, Context], int]:
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
