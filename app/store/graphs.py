"""Storage of uploaded networks: append-only, idempotent by a hash of their content."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.dialects.postgresql import insert as insert_into

from app.errors import NotFound
from app.store.sql_tables import GRAPHS, columns_of, records


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphRow:
    """One network: `body` is its canonical JSON in the format `form`; parameters and FLOPs are those for `dims`."""

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


_ID = re.compile("[0-9a-f]{64}")  # other ids are not sent to PostgreSQL
_LISTED = [column for column in columns_of(GRAPHS, GraphRow) if column.name != "body"]


def insert(connection: Connection, row: GraphRow) -> bool:
    """Add a network; return False if it is already stored."""
    values = {name: value for name, value in asdict(row).items() if name != "created_at"}
    statement = insert_into(GRAPHS).values(values).on_conflict_do_nothing().returning(GRAPHS.c.id)
    return connection.execute(statement).one_or_none() is not None


def body(connection: Connection, graph_id: str) -> tuple[str, str]:
    """Return format and canonical JSON of a network; raises NotFound."""
    statement = sa.select(GRAPHS.c.form, GRAPHS.c.body).where(GRAPHS.c.id == graph_id)
    row = _row(connection, statement, graph_id)
    return row.form, row.body


def get(connection: Connection, graph_id: str) -> GraphRow:
    """Return a network without its body; raises NotFound."""
    statement = sa.select(*_LISTED).where(GRAPHS.c.id == graph_id)
    return GraphRow(**_row(connection, statement, graph_id)._mapping)


def page(connection: Connection, *, after: str | None = None, limit: int = 100) -> list[GraphRow]:
    """Return up to `limit` networks after the id `after`, ordered by id, without bodies."""
    statement = sa.select(*_LISTED).order_by(GRAPHS.c.id).limit(limit)
    if after is not None:
        statement = statement.where(GRAPHS.c.id > after)
    return records(connection, statement, GraphRow)


def _row(connection: Connection, statement: sa.Select[Any], graph_id: str) -> sa.Row[Any]:
    row = connection.execute(statement).one_or_none() if _ID.fullmatch(graph_id) else None
    if row is None:
        raise NotFound(f"No graph has the id {graph_id[:100]!r}; POST /graphs stores one and returns its id.")
    return row
