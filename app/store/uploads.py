"""Uploads of measurements: which rows came together, and with whose key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection

from app.store.driver import Question, ask, scalars
from app.store.measurement_filters import Filters
from app.store.sql_tables import UPLOADS


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """One upload with new rows; `key_id` is None where no key was required."""

    id: int
    key_id: int | None
    rows: int
    created_at: datetime


def new_ids(uploads: int) -> Question[list[int]]:
    """Ask for ids of so many new uploads."""
    return Question(
        "SELECT nextval(pg_get_serial_sequence('uploads', 'id')) FROM generate_series(1, %s)", [uploads], scalars
    )


def record(connection: Connection, uploads: Sequence[tuple[int, int | None, int]]) -> None:
    """Record uploads: the id, the id of the key, and the number of new rows; those without any are forgotten."""
    made = [each for each in uploads if each[2]]
    if made:
        columns = [list(column) for column in zip(*made, strict=True)]
        ask(connection, Question(_RECORD, columns, len))


_RECORD = "INSERT INTO uploads (id, key_id, rows) SELECT * FROM unnest(%s::bigint[], %s::integer[], %s::bigint[])"


def listed(connection: Connection, *, most: int = 1000) -> list[Upload]:
    """Return the latest `most` uploads, newest first."""
    columns = [UPLOADS.c[item.name] for item in fields(Upload)]
    rows = connection.execute(sa.select(*columns).order_by(UPLOADS.c.id.desc()).limit(most))
    return [Upload(**row._mapping) for row in rows]


def key_of(connection: Connection, upload_id: int) -> int | None:
    """Return the id of the key that sent an upload."""
    key_id: int | None = connection.execute(sa.select(UPLOADS.c.key_id).where(UPLOADS.c.id == upload_id)).scalar()
    return key_id


def in_uploads(filters: Filters, column: ColumnElement[int]) -> ColumnElement[bool]:
    """Return the condition that a column of upload ids agrees with the filters `upload` and `key`."""
    if filters.key is not None:
        of_key = column.in_(sa.select(UPLOADS.c.id).where(UPLOADS.c.key_id == filters.key))
        return of_key if filters.upload is None else of_key & (column == filters.upload)
    return sa.true() if filters.upload is None else column == filters.upload
