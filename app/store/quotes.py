"""Storage of saved answers with their requests and versions, from which they can be reproduced."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from app.errors import NotFound
from app.store.sql_tables import SAVED_PREDICTIONS as SAVED
from app.store.sql_tables import columns_of, records


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
    statement = sa.select(*columns_of(SAVED, Saved)).where(SAVED.c.id == saved_id)
    for saved in records(connection, statement, Saved):
        return saved
    raise NotFound(f"No saved prediction has the id {saved_id}.")


def page(connection: Connection, *, after: int | None, limit: int) -> list[Entry]:
    """Return up to `limit` saved answers, newest first, older than the id `after`."""
    statement = sa.select(*columns_of(SAVED, Entry)).order_by(SAVED.c.id.desc()).limit(limit)
    if after is not None:
        statement = statement.where(SAVED.c.id < after)
    return records(connection, statement, Entry)
