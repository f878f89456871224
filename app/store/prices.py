"""Storage of GPU prices: append-only, idempotent by content."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.dialects.postgresql import insert as insert_into

from app.store import revision
from app.store.sql_tables import PRICES

# Rows per INSERT: a statement has at most 65,535 parameters.
_INSERT_CHUNK = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """An offered price of one device per hour, in US dollars, on a day; `id` is 0 before it is stored."""

    gpu_id: str
    usd_per_hour: float
    source: str
    dated: date
    provider: str = ""
    region: str = ""
    id: int = 0


_COLUMNS = tuple(PRICES.c[name] for name in Price.__slots__)


def insert(connection: Connection, prices: Sequence[Price]) -> int:
    """Add rows in the caller's transaction, and return the number of new ones; known rows are unchanged."""
    values = [{name: value for name, value in asdict(price).items() if name != "id"} for price in prices]
    revision.lock(connection)
    added = 0
    for first in range(0, len(values), _INSERT_CHUNK):
        statement = insert_into(PRICES).values(values[first : first + _INSERT_CHUNK]).on_conflict_do_nothing()
        added += len(connection.execute(statement.returning(PRICES.c.id)).all())
    if added:
        revision.bump(connection, "prices")
    return added


def load(connection: Connection, *, until: datetime | None = None) -> list[Price]:
    """Return all rows, or those stored until a time, in the order of storage."""
    statement = sa.select(*_COLUMNS).order_by(PRICES.c.id)
    if until is not None:
        statement = statement.where(PRICES.c.created_at <= until)
    return [Price(**row._mapping) for row in connection.execute(statement)]


def page(connection: Connection, *, after: int = 0, limit: int = 100, **filters: str | None) -> list[Price]:
    """Return up to `limit` rows after the id `after`, in the order of storage; filters are exact, None matches any."""
    statement = sa.select(*_COLUMNS).where(PRICES.c.id > after).order_by(PRICES.c.id).limit(limit)
    for name, value in filters.items():
        if value is not None:
            statement = statement.where(PRICES.c[name] == value)
    return [Price(**row._mapping) for row in connection.execute(statement)]
