"""Storage of saved answers with their requests and versions, from which they can be reproduced."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection

from app.errors import NotFound
from app.store.keys import Caller, Owner, check_owned
from app.store.sql_tables import SAVED_PREDICTIONS as SAVED
from app.store.sql_tables import columns_of, records


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """One saved answer; `request` and `answer` are JSON. `share` is its token, for its owner and admins alone."""

    id: int
    kind: str
    workload: str
    request: str
    answer: str
    versions: dict[str, Any]
    created_at: datetime
    share: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of the list."""

    id: int
    kind: str
    workload: str
    created_at: datetime


_TOKEN = re.compile("[0-9A-Za-z_-]{22,64}")  # others are not sent to PostgreSQL
REMOVED_AT_ONCE = 1_000
MOST_DAYS = 36_525  # a century: dates end
_ADVICE = "saved answers (GPUCAST_MAX_SAVED_PER_KEY); delete some: DELETE /predictions/{id}."


def insert(connection: Connection, owner: Owner, **values: Any) -> int:
    """Store an answer, the fields of a `Saved`, and return its id. Raises Conflict if the owner has too many."""
    check_owned(connection, SAVED.c.key_id, owner, _ADVICE)
    values |= {"key_id": owner.key_id, "share": secrets.token_urlsafe(32)}
    return int(connection.execute(sa.insert(SAVED).values(values).returning(SAVED.c.id)).scalar_one())


def get(connection: Connection, saved_id: int, caller: Caller, share: str | None = None) -> Saved:
    """Return a saved answer that the caller may read, or anybody with its token; raises NotFound."""
    token = sa.case((caller.owns(SAVED.c.key_id) & SAVED.c.key_id.is_not(None), SAVED.c.share)).label("share")
    columns = [token if column.name == "share" else column for column in columns_of(SAVED, Saved)]
    for saved in records(
        connection, sa.select(*columns).where(SAVED.c.id == saved_id, _readable(caller, share)), Saved
    ):
        return saved
    raise _not_found(saved_id)


def page(connection: Connection, caller: Caller, *, after: int | None, limit: int) -> list[Entry]:
    """Return up to `limit` saved answers that the caller may read, newest first, older than the id `after`."""
    statement = sa.select(*columns_of(SAVED, Entry)).where(_readable(caller)).order_by(SAVED.c.id.desc()).limit(limit)
    if after is not None:
        statement = statement.where(SAVED.c.id < after)
    return records(connection, statement, Entry)


def remove(connection: Connection, saved_id: int, caller: Caller) -> None:
    """Delete a saved answer of the caller; raises NotFound."""
    statement = sa.delete(SAVED).where(SAVED.c.id == saved_id, caller.owns(SAVED.c.key_id))
    if not connection.execute(statement).rowcount:
        raise _not_found(saved_id)


def remove_old(connection: Connection, days: float) -> int:
    """Delete the oldest answers, at most REMOVED_AT_ONCE, that were saved before so many days; return their number."""
    oldest = sa.select(SAVED.c.id, SAVED.c.created_at).order_by(SAVED.c.id).limit(REMOVED_AT_ONCE).subquery()
    old = sa.select(oldest.c.id).where(oldest.c.created_at < sa.func.now() - timedelta(days=min(days, MOST_DAYS)))
    return connection.execute(sa.delete(SAVED).where(SAVED.c.id.in_(old))).rowcount


def _readable(caller: Caller, share: str | None = None) -> ColumnElement[bool]:
    """Return the condition that the caller may read a row: its own, everybody's, or shared by its token."""
    readable = caller.owns(SAVED.c.key_id) | SAVED.c.key_id.is_(None)
    return readable | (SAVED.c.share == share) if share is not None and _TOKEN.fullmatch(share) else readable


def _not_found(saved_id: int) -> NotFound:
    return NotFound(f"No saved prediction has the id {saved_id}.")
