"""Networks that callers sent: append-only, idempotent by the hash of what they say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.dialects.postgresql import insert as insert_into

from app.errors import NotFound
from app.store.rows import GRAPHS


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphRow:
    """One network: `body` is its canonical JSON, of the kind that `form` says; figures are those for `dims`."""

    id: str
    form: str
    name: str
    nodes: int
    parameters: float
    flops: float
    unknown: Mapping[str, int]
    dims: Mapping[str, int]
    body: str = ""
    created_at: datetime | None = None


_ID = re.compile("[0-9a-f]{64}")  # anything else is no text that PostgreSQL need see
_LISTED = tuple(item.name for item in fields(GraphRow) if item.name != "body")


def insert(connection: Connection, row: GraphRow) -> bool:
    """Add a network; False where it is there already."""
    values = {name: value for name, value in asdict(row).items() if name != "created_at"}
    statement = insert_into(GRAPHS).values(values).on_conflict_do_nothing().returning(GRAPHS.c.id)
    return connection.execute(statement).one_or_none() is not None


def body(connection: Connection, graph_id: str) -> tuple[str, str]:
    """Form and canonical JSON of one network; NotFound otherwise."""
    statement = sa.select(GRAPHS.c.form, GRAPHS.c.body).where(GRAPHS.c.id == graph_id)
    found = _one(connection, statement, graph_id)
    return found.form, found.body


def get(connection: Connection, graph_id: str) -> GraphRow:
    """What is known of one network, without its body; NotFound otherwise."""
    statement = sa.select(*(GRAPHS.c[name] for name in _LISTED)).where(GRAPHS.c.id == graph_id)
    return GraphRow(**_one(connection, statement, graph_id)._mapping)


def page(connection: Connection, *, after: str | None = None, limit: int = 100) -> list[GraphRow]:
    """Up to `limit` networks in the order of their ids, without bodies, the first one after the id `after`."""
    statement = sa.select(*(GRAPHS.c[name] for name in _LISTED)).order_by(GRAPHS.c.id).limit(limit)
    if after is not None:
        statement = statement.where(GRAPHS.c.id > after)
    return [GraphRow(**found._mapping) for found in connection.execute(statement)]


def _one(connection: Connection, statement: sa.Select[Any], graph_id: str) -> sa.Row[Any]:
    found = connection.execute(statement).one_or_none() if _ID.fullmatch(graph_id) else None
    if found is None:
        raise NotFound(f"No graph has the id {graph_id[:100]!r}; POST /graphs stores one and answers its id.")
    return found
