"""Storage of saved answers with their requests and versions, from which they can be reproduced."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Row

from app.errors import NotFound
from app.store.sql_tables import SAVED_PREDICTIONS as SAVED


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """One saved answer; `request` and `answer` are JSON."""

    id: int
    kind: str
    workload: str
    request: str
    answer: str
    versions: dict[str, Any]
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of the list."""

    id: int
    kind: str
    workload: str
    created_at: datetime


def insert(
    connection: Connection, *, kind: str, workload: str, request: str, answer: str, versions: dict[str, Any]
) -> int:
    """Store an answer, and return its id."""
    statement = sa.insert(SAVED).values(kind=kind, workload=workload, request=request, answer=answer, versions=versions)
    return int(connection.execute(statement.returning(SAVED.c.id)).scalar_one())


def get(connection: Connection, saved_id: int) -> Saved:
    """Return a saved answer; raises NotFound."""
    statement = sa.select(*_columns(Saved)).where(SAVED.c.id == saved_id)
    row: Row[Any] | None = connection.execute(statement).one_or_none()
    if row is None:
        raise NotFound(f"No saved prediction has the id {saved_id}.")
    return Saved(**row._mapping)


def page(connection: Connection, *, after: int | None, limit: int) -> list[Entry]:
    """Return up to `limit` saved answers, newest first, older than the id `after`."""
    statement = sa.select(*_columns(Entry)).order_by(SAVED.c.id.desc()).limit(limit)
    if after is not None:
        statement = statement.where(SAVED.c.id < after)
    return [Entry(**row._mapping) for row in connection.execute(statement)]


def _columns(form: type[Saved] | type[Entry]) -> list[sa.Column[Any]]:
    return [SAVED.c[item.name] for item in fields(form)]
