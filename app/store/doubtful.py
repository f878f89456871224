"""Storage of doubtful measurements: apart from the others, so that nothing learns them or answers with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection
from sqlalchemy.dialects.postgresql import insert as insert_into

from app.store import uploads
from app.store.measurement_filters import Filters, Page, agreeing
from app.store.sql_tables import DOUBTFUL_MEASUREMENTS as DOUBTFUL


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


_STORED = tuple(item.name for item in fields(DoubtfulRow))


def insert(connection: Connection, rows: Sequence[DoubtfulRow]) -> int:
    """Add rows in the caller's transaction, and return the number of new ones."""
    if not rows:
        return 0
    values = [{name: value for name, value in asdict(row).items() if name != "created_at"} for row in rows]
    statement = insert_into(DOUBTFUL).on_conflict_do_nothing().returning(DOUBTFUL.c.id)
    return len(connection.execute(statement, values).all())


def page(connection: Connection, filters: Page) -> list[DoubtfulRow]:
    """Return the rows of a page, ordered by id."""
    statement = sa.select(*(DOUBTFUL.c[name] for name in _STORED)).where(_agreeing(filters)).order_by(DOUBTFUL.c.id)
    if filters.after is not None:
        statement = statement.where(DOUBTFUL.c.id > filters.after)
    return [DoubtfulRow(**row._mapping) for row in connection.execute(statement.limit(filters.limit))]


def take(connection: Connection, filters: Filters) -> list[DoubtfulRow]:
    """Delete the matching rows and return them, ordered by id."""
    gone = sa.delete(DOUBTFUL).where(_agreeing(filters)).returning(*(DOUBTFUL.c[name] for name in _STORED))
    rows = [DoubtfulRow(**row._mapping) for row in connection.execute(gone)]
    return sorted(rows, key=lambda row: row.id)


def remove(connection: Connection, filters: Filters, *, dry_run: bool = False) -> dict[tuple[str, str], int]:
    """Delete matching rows; return their numbers by (kind, GPU id). A dry run only counts."""
    columns = (DOUBTFUL.c.kind, DOUBTFUL.c.gpu_id)
    statement = sa.select(*columns) if dry_run else sa.delete(DOUBTFUL).returning(*columns)
    return dict(Counter((kind, gpu) for kind, gpu in connection.execute(statement.where(_agreeing(filters)))))


def _agreeing(filters: Filters) -> ColumnElement[bool]:
    columns = {DOUBTFUL.c.gpu_id: filters.gpu, DOUBTFUL.c.kind: filters.kind, DOUBTFUL.c.name: filters.name}
    columns |= {DOUBTFUL.c.software: filters.software, DOUBTFUL.c.source: filters.source}
    return agreeing(columns) & uploads.in_uploads(filters, DOUBTFUL.c.upload_id)
