"""Storage of uploaded networks and the keys that own them, idempotent by a hash of their content."""

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
from app.store.keys import NOBODY, Caller, Owner, check_owned
from app.store.sql_tables import GRAPH_OWNERS as OWNERS
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


_OWNED = sa.exists().where(OWNERS.c.graph_id == GRAPHS.c.id)
_ADVICE = "graphs (GPUCAST_MAX_GRAPHS_PER_KEY); delete some: DELETE /graphs/{id}."


def insert(connection: Connection, row: GraphRow, owner: Owner = NOBODY) -> bool:
    """Add a network; return False if it is already stored. Raises Conflict if the owner has too many.

    It becomes one of the owners, unless the network is everybody's.
    """
    _lock(connection, row.id)
    inserted = _insert(connection, row)
    owners = connection.execute(sa.select(OWNERS.c.key_id).where(OWNERS.c.graph_id == row.id)).scalars().all()
    if owner.key_id is not None and owner.key_id not in owners and (inserted or owners):
        check_owned(connection, OWNERS.c.key_id, owner, _ADVICE)
        connection.execute(sa.insert(OWNERS).values(graph_id=row.id, key_id=owner.key_id))
    return inserted


def remove(connection: Connection, graph_id: str, caller: Caller) -> bool:
    """Take a network from the caller; raises NotFound if it owns none such. Return True if it is deleted.

    It is with its last owner. A caller that stands for everybody deletes it at once.
    """
    _lock(connection, graph_id)
    graph = sa.delete(GRAPHS).where(GRAPHS.c.id == graph_id)
    mine = sa.delete(OWNERS).where(OWNERS.c.graph_id == graph_id, OWNERS.c.key_id == caller.owner_id)
    if not connection.execute(graph if caller.everybody else mine).rowcount:
        raise _not_found(graph_id)
    return caller.everybody or connection.execute(graph.where(~_OWNED)).rowcount > 0


def _lock(connection: Connection, graph_id: str) -> None:
    """Make others that add or remove this network wait until the transaction ends."""
    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(int(graph_id[:15], 16))))


def _insert(connection: Connection, row: GraphRow) -> bool:
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


def page(connection: Connection, caller: Caller, *, after: str | None = None, limit: int = 100) -> list[GraphRow]:
    """Return up to `limit` networks of the caller or everybody after the id `after`, ordered by id, without bodies."""
    mine = caller.owns(OWNERS.c.key_id)
    listed = sa.true() if caller.everybody else ~_OWNED | _OWNED.where(mine)
    statement = sa.select(*_LISTED).where(listed).order_by(GRAPHS.c.id).limit(limit)
    if after is not None:
        statement = statement.where(GRAPHS.c.id > after)
    return records(connection, statement, GraphRow)


def _row(connection: Connection, statement: sa.Select[Any], graph_id: str) -> sa.Row[Any]:
    row = connection.execute(statement).one_or_none() if _ID.fullmatch(graph_id) else None
    if row is None:
        raise _not_found(graph_id)
    return row


def exists(connection: Connection, graph_id: str) -> None:
    """Raise NotFound if no network has the id."""
    _row(connection, sa.select(GRAPHS.c.id).where(GRAPHS.c.id == graph_id), graph_id)


def _not_found(graph_id: str) -> NotFound:
    return NotFound(f"No graph has the id {graph_id[:100]!r}; POST /graphs stores one and returns its id.")
