"""Saved answers, with the request and the versions from which they can be derived again."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Row

from app.errors import NotFound
from app.store.rows import SAVED_PREDICTIONS as SAVED


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """One answer as it was given; `request` and `answer` are JSON."""

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
    """Keep an answer; returns its id."""
    statement = sa.insert(SAVED).values(kind=kind, workload=workload, request=request, answer=answer, versions=versions)
    return int(connection.execute(statement.returning(SAVED.c.id)).scalar_one())


def get(connection: Connection, saved_id: int) -> Saved:
    """One answer; NotFound otherwise."""
    statement = sa.select(*_columns(Saved)).where(SAVED.c.id == saved_id)
    found: Row[Any] | None = connection.execute(statement).one_or_none()
    if found is None:
        raise NotFound(f"No saved prediction has the id {saved_id}.")
    return Saved(**found._mapping)


def page(connection: Connection, *, after: int | None, limit: int) -> list[Entry]:
    """Up to `limit` of them, newest first, older than the one of the id `after`."""
    statement = sa.select(*_columns(Entry)).order_by(SAVED.c.id.desc()).limit(limit)
    if after is not None:
        statement = statement.where(SAVED.c.id < after)
    return [Entry(**found._mapping) for found in connection.execute(statement)]


def _columns(form: type[Saved] | type[Entry]) -> list[sa.Column[Any]]:
    return [SAVED.c[item.name] for item in fields(form)]
