"""Storage of measurements that nothing learns or answers with: doubtful ones, and refused ones beyond a GPU's limit.

Limits that such measurements raised are kept with the keys that sent them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.dialects.postgresql import insert as insert_into

from app.store import uploads
from app.store.sql_tables import DOUBTFUL_MEASUREMENTS as DOUBTFUL
from app.store.sql_tables import LIMIT_BREACHES as BREACHES
from app.store.sql_tables import RAISED_LIMITS as RAISED
from app.store.sql_tables import columns_of, records
from app.store.uploads import Filters, Page


@dataclass(frozen=True, slots=True, kw_only=True)
class DoubtfulRow:
    """One doubtful measurement: `body` as POST /measurements takes it, and the time that was expected, seconds."""

    id: str
    kind: str
    gpu_id: str
    name: str
    software: str
    source: str
    body: dict[str, Any]
    expected_s: float
    upload_id: int
    created_at: datetime | None = None


_STORED = columns_of(DOUBTFUL, DoubtfulRow)


def insert(connection: Connection, rows: Sequence[DoubtfulRow]) -> int:
    """Add rows in the caller's transaction, and return the number of new ones."""
    if not rows:
        return 0
    values = [{name: value for name, value in asdict(row).items() if name != "created_at"} for row in rows]
    statement = insert_into(DOUBTFUL).on_conflict_do_nothing().returning(DOUBTFUL.c.id)
    return len(connection.execute(statement, values).all())


def page(connection: Connection, filters: Page) -> list[DoubtfulRow]:
    """Return the rows of a page, ordered by id."""
    statement = sa.select(*_STORED).where(uploads.matching(filters, DOUBTFUL)).order_by(DOUBTFUL.c.id)
    if filters.after is not None:
        statement = statement.where(DOUBTFUL.c.id > filters.after)
    return records(connection, statement.limit(filters.limit), DoubtfulRow)


def take(connection: Connection, filters: Filters) -> list[DoubtfulRow]:
    """Delete the matching rows and return them, ordered by id."""
    gone = sa.delete(DOUBTFUL).where(uploads.matching(filters, DOUBTFUL)).returning(*_STORED)
    return sorted(records(connection, gone, DoubtfulRow), key=lambda row: row.id)


def remove(connection: Connection, filters: Filters, *, dry_run: bool = False) -> dict[tuple[str, str], int]:
    """Delete matching rows; return their numbers by (kind, GPU id). A dry run only counts."""
    columns = (DOUBTFUL.c.kind, DOUBTFUL.c.gpu_id)
    statement = sa.select(*columns) if dry_run else sa.delete(DOUBTFUL).returning(*columns)
    return dict(
        Counter((kind, gpu) for kind, gpu in connection.execute(statement.where(uploads.matching(filters, DOUBTFUL))))
    )


# Two runs so far apart do not share what disturbed one of them.
APART = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Breach:
    """One measurement beyond a limit; `id` is the same for one measurement that is sent again.

    figure  of the GPU: a field of `GpuSpec`, or "peak_flops.PIPE"
    value   the least that the figure must be for the measurement to be possible, SI units
    """

    id: str
    gpu_id: str
    figure: str
    value: float


def record_breaches(connection: Connection, breaches: Sequence[Breach], key_id: int | None) -> None:
    """Add breaches; those that are known stay as they were."""
    values = [{**asdict(one), "key_id": key_id} for one in breaches]
    connection.execute(insert_into(BREACHES).on_conflict_do_nothing(), values)


def repeated(connection: Connection, gpu_id: str, figure: str) -> float | None:
    """Return the highest value that two measurements confirm, if there are some at least `APART` apart; else None."""
    mine = (BREACHES.c.gpu_id == gpu_id) & (BREACHES.c.figure == figure)
    first, last = connection.execute(
        sa.select(sa.func.min(BREACHES.c.created_at), sa.func.max(BREACHES.c.created_at)).where(mine)
    ).one()
    if first is None or last - first < APART:
        return None
    highest = sa.select(BREACHES.c.value).where(mine).order_by(BREACHES.c.value.desc())
    second_highest: float = connection.execute(highest.offset(1).limit(1)).scalar_one()
    return second_highest


def forget(connection: Connection, gpu_id: str, figure: str) -> None:
    """Delete the breaches of a figure that was corrected."""
    connection.execute(sa.delete(BREACHES).where(BREACHES.c.gpu_id == gpu_id, BREACHES.c.figure == figure))


def keys_of(connection: Connection, gpu_id: str, figure: str) -> list[int | None]:
    """Return the ids of the keys that sent breaches of a figure; None stands for no key."""
    mine = (BREACHES.c.gpu_id == gpu_id) & (BREACHES.c.figure == figure)
    return list(connection.execute(sa.select(BREACHES.c.key_id).where(mine).distinct()).scalars())


def withdraw(connection: Connection, key_id: int, gpu_id: str | None) -> None:
    """Delete the breaches that a key sent, on one GPU or on all."""
    of = sa.true() if gpu_id is None else BREACHES.c.gpu_id == gpu_id
    connection.execute(sa.delete(BREACHES).where(BREACHES.c.key_id == key_id, of))


@dataclass(frozen=True, slots=True)
class Raise:
    """A figure of a GPU, as in a Breach, that was raised to `value` from `before`, which was of this provenance."""

    gpu_id: str
    figure: str
    value: float
    before: float
    provenance: str


def record_raise(connection: Connection, raised: Raise) -> None:
    """Store a raise, for each key that sent a breach of the figure; None stands for no key."""
    keys = keys_of(connection, raised.gpu_id, raised.figure)
    connection.execute(sa.insert(RAISED), [{**asdict(raised), "key_id": key} for key in keys])


def take_back(connection: Connection, key_id: int, gpu_id: str | None) -> list[Raise]:
    """Forget the raises of a key, on one GPU or on all, and those that came later; return one for each figure.

    It goes from what the figure is now, if nothing else has changed it, to what it was before the first of them.
    """
    mine = (RAISED.c.key_id == key_id) & (sa.true() if gpu_id is None else RAISED.c.gpu_id == gpu_id)
    figures = sa.select(RAISED.c.gpu_id, RAISED.c.figure, sa.func.min(RAISED.c.id)).where(mine)
    firsts = connection.execute(figures.group_by(RAISED.c.gpu_id, RAISED.c.figure)).all()
    return [_taken_back(connection, *first) for first in firsts]


def _taken_back(connection: Connection, gpu_id: str, figure: str, first: int) -> Raise:
    later = (RAISED.c.gpu_id == gpu_id) & (RAISED.c.figure == figure) & (RAISED.c.id >= first)
    taken = sa.delete(RAISED).where(later).returning(RAISED.c.id, RAISED.c.value, RAISED.c.before, RAISED.c.provenance)
    rows = sorted(connection.execute(taken).all(), key=lambda row: row.id)
    return Raise(gpu_id, figure, rows[-1].value, rows[0].before, rows[0].provenance)
