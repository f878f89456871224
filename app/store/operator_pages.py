"""Measured operators as they are listed: a page at a time, one row each."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy import Connection

from app.store.operator_blocks import ID_BYTES, Context
from app.store.operators import agreeing_contexts
from app.store.page import Page
from app.store.rows import OPERATOR_CONTEXTS, OPERATOR_MEASUREMENTS

# Fewer rows than this are found by their contexts.
_RARE = 20_000
_C, _M = OPERATOR_CONTEXTS.c, OPERATOR_MEASUREMENTS.c


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredOperator:
    """One row as stored: seconds, Hz, W. `dims` are the figures of `context.fields`; `id` is 32 hexadecimal digits."""

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
    created_at: datetime


def page(connection: Connection, wanted: Page) -> list[StoredOperator]:
    """The rows of a page; `name` is the operator, ids are hexadecimal."""
    contexts, rows = _contexts(connection, wanted)
    if not contexts:
        return []
    statement = sa.select(OPERATOR_MEASUREMENTS).where(_M.context_id.in_(contexts))
    if wanted.after is not None:
        statement = statement.where(_M.id > str(uuid.UUID(wanted.after[: 2 * ID_BYTES])))
    # Walking all ids until enough rare rows turned up takes seconds.
    found = sa.select(statement.offset(0).subquery()) if rows < _RARE else statement
    ordered = found.order_by(sa.literal_column("id")).limit(wanted.limit)
    return [_row(row, contexts) for row in connection.execute(ordered).mappings()]


def _contexts(connection: Connection, wanted: Page) -> tuple[dict[int, Context], int]:
    """Contexts by their database ids that agree with every filter given, and how many rows they have."""
    statement = sa.select(_C.measurements, _C.id, *(_C[field] for field in Context.__slots__))
    statement = statement.where(agreeing_contexts(wanted))
    contexts, total = dict[int, Context](), 0
    for rows, context_id, op, dtype, fields, *rest in connection.execute(statement):
        contexts[context_id] = Context(op, dtype, tuple(fields), *rest)
        total += rows
    return contexts, total


def _row(found: sa.RowMapping, contexts: Mapping[int, Context]) -> StoredOperator:
    own = {field: found[field] for field in StoredOperator.__slots__ if field not in ("id", "context", "dims")}
    return StoredOperator(id=found["id"].hex, context=contexts[found["context_id"]], dims=tuple(found["dims"]), **own)
