"""Uploads of measurements, of rows that came together with a key; filters; and shipped files that were imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy import Column, ColumnElement, Connection, and_, true

from app.store.driver import Question, ask, scalars
from app.store.sql_tables import SEED_FILES, UPLOADS, columns_of, records


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Exact filters, all of which must match; `gpu` is a catalogue id, `name` a kernel, operator or model.

    `upload` and `key` are ids: of the upload that brought a row, and of the key that sent it.
    """

    gpu: str | None = None
    kind: str | None = None
    name: str | None = None
    software: str | None = None
    source: str | None = None
    upload: int | None = None
    key: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Filters):
    """Up to `limit` matching rows after the id `after`, ordered by id."""

    after: str | None = None
    limit: int = 100


def agreeing(filters: Mapping[Column[str], str | None]) -> ColumnElement[bool]:
    """Return the condition that columns have the given values; None matches any value."""
    return and_(true(), *(column == value for column, value in filters.items() if value is not None))


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


def record(connection: Connection, uploads: Sequence[tuple[int, int | None, int, int | None]]) -> None:
    """Record uploads: the id, the id of the key, and the number of new rows; those without any are forgotten.

    The last is the revision of operators that were stored before their revision was known; None: there are none.
    """
    made = [each for each in uploads if each[2]]
    if made:
        columns = [list(column) for column in zip(*made, strict=True)]
        ask(connection, Question(_RECORD, columns, len))


_RECORD = (
    "INSERT INTO uploads (id, key_id, rows, revision)"
    " SELECT * FROM unnest(%s::bigint[], %s::integer[], %s::bigint[], %s::bigint[])"
)


def listed(connection: Connection, *, most: int = 1000) -> list[Upload]:
    """Return the latest `most` uploads, newest first."""
    latest = sa.select(*columns_of(UPLOADS, Upload)).order_by(UPLOADS.c.id.desc()).limit(most)
    return records(connection, latest, Upload)


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


def matching(filters: Filters, table: sa.Table) -> ColumnElement[bool]:
    """Return the condition that rows of a table with these columns match the filters."""
    columns = {table.c[name]: getattr(filters, name) for name in ("kind", "name", "software", "source")}
    return agreeing(columns | {table.c.gpu_id: filters.gpu}) & in_uploads(filters, table.c.upload_id)


SEED_LOCK = 0x73656564  # "seed": serialises the import at start


def lock_seed_files(connection: Connection) -> None:
    """Take the exclusive lock of the import until the transaction ends."""
    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(SEED_LOCK)))


def known_seed_files(connection: Connection) -> set[str]:
    """Return the SHA-256 of every imported file."""
    return set(connection.execute(sa.select(SEED_FILES.c.sha256)).scalars())


def add_seed_file(connection: Connection, sha256: str, name: str) -> None:
    """Record an imported file."""
    connection.execute(sa.insert(SEED_FILES).values(sha256=sha256, name=name))
