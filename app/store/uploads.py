"""Uploads of measurements: which rows came together, and with whose key."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection

from app.store.measurement_filters import Filters
from app.store.upload_tables import UPLOADS


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """One upload with new rows; `key_id` is None where no key was required."""

    id: int
    key_id: int | None
    rows: int
    created_at: datetime


def begin(connection: Connection, key_id: int | None) -> int:
    """Return the id of a new upload."""
    made = sa.insert(UPLOADS).values(key_id=key_id).returning(UPLOADS.c.id)
    return int(connection.execute(made).scalar_one())


def end(connection: Connection, upload_id: int, rows: int) -> None:
    """Record how many new rows it had; an upload without any is forgotten."""
    mine = UPLOADS.c.id == upload_id
    if rows:
        connection.execute(sa.update(UPLOADS).where(mine).values(rows=rows))
    else:
        connection.execute(sa.delete(UPLOADS).where(mine))


def listed(connection: Connection, *, most: int = 1000) -> list[Upload]:
    """Return the latest `most` uploads, newest first."""
    columns = [UPLOADS.c[item.name] for item in fields(Upload)]
    found = connection.execute(sa.select(*columns).order_by(UPLOADS.c.id.desc()).limit(most))
    return [Upload(**row._mapping) for row in found]


def key_of(connection: Connection, upload_id: int) -> int | None:
    """Return the id of the key that sent an upload."""
    found: int | None = connection.execute(sa.select(UPLOADS.c.key_id).where(UPLOADS.c.id == upload_id)).scalar()
    return found


def in_uploads(filters: Filters, column: ColumnElement[int]) -> ColumnElement[bool]:
    """Return the condition that a column of upload ids agrees with the filters `upload` and `key`."""
    if filters.key is not None:
        of_key = column.in_(sa.select(UPLOADS.c.id).where(UPLOADS.c.key_id == filters.key))
        return of_key if filters.upload is None else of_key & (column == filters.upload)
    return sa.true() if filters.upload is None else column == filters.upload
