"""Storage of measurements: immutable, idempotent by a hash of their content, removable by filters."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.dialects import postgresql

from app.store import doubtful, operator_rows, operators, revision, uploads
from app.store.driver import Question, ask, scalars
from app.store.sql_tables import MEASUREMENTS, columns_of, records
from app.store.uploads import Filters, Page

JSON_COLUMNS = ("workload", "phases_s", "kernel")
# Rows per INSERT: keeps its parameters within tens of megabytes.
INSERT_CHUNK = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementRow:
    """One stored measurement, in seconds, Hz and W.

    gpu_id    catalogue id
    workload  the API's form without times
    upload_id  the upload that brought it; None for imports
    id        empty before `insert`, which sets it to `identity`
    """

    gpu_id: str
    software: str
    kind: str
    name: str
    workload: dict[str, Any]
    latency_s: float
    source: str
    latency_std_s: float | None = None
    runs: int | None = None
    phases_s: dict[str, float] | None = None
    kernel: dict[str, Any] | None = None
    clock_hz: float | None = None
    power_w: float | None = None
    measured_at: datetime | None = None
    upload_id: int | None = None
    id: str = ""
    created_at: datetime | None = None


_STORED = tuple(item.name for item in fields(MeasurementRow) if item.name != "created_at")
_IDENTITY = tuple(name for name in _STORED if name not in ("id", "runs", "latency_std_s", "power_w", "upload_id"))


_SELECT = sa.select(*columns_of(MEASUREMENTS, MeasurementRow))


def identity(row: MeasurementRow) -> str:
    """Return the SHA-256 of a row's workload, GPU, software and time; 1024 and 1024.0 are equal."""
    content = {name: _canonical(getattr(row, name)) for name in _IDENTITY}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _canonical(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _canonical(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else value


def insert(connection: Connection, rows: Sequence[MeasurementRow]) -> int:
    """Add rows in the caller's transaction, and return the number of new ones; known rows are unchanged."""
    return insert_uploads(connection, rows).total()


def insert_uploads(
    connection: Connection, rows: Sequence[MeasurementRow], *, ahead: bool = False
) -> Counter[int | None]:
    """Add rows as `insert` does; return the number of new ones by upload. Of equal rows the first is new.

    With `ahead` the caller takes `revision.lock` and increments the revision afterwards.
    """
    inserted: Counter[int | None] = Counter()
    for start in range(0, len(rows), INSERT_CHUNK):
        columns = _columns(rows[start : start + INSERT_CHUNK])
        if ahead:
            (new,) = ask(connection, Question(_INSERT_AHEAD, columns, dict))
        else:
            _, new = ask(connection, revision.LOCK, Question(_INSERT, columns, dict))
        inserted.update(new)
    return inserted


def known(connection: Connection, ids: Sequence[str]) -> set[str]:
    """Return the given ids that are stored."""
    (known_ids,) = ask(connection, stored(ids))
    return set(known_ids)


def stored(ids: Sequence[str]) -> Question[set[str]]:
    """Ask which of the given ids are stored."""
    return Question("SELECT id FROM measurements WHERE id = ANY(%s)", [list(ids)], lambda rows: {*scalars(rows)})


def _columns(rows: Sequence[MeasurementRow]) -> list[list[Any]]:
    """Return the values of each of `_STORED`."""
    columns: dict[str, list[Any]] = {name: [getattr(row, name) for row in rows] for name in _STORED}
    columns["id"] = [row.id or identity(row) for row in rows]
    for name in JSON_COLUMNS:
        columns[name] = [None if value is None else json.dumps(value, allow_nan=False) for value in columns[name]]
    return list(columns.values())


def page(connection: Connection, filters: Page) -> list[MeasurementRow]:
    """Return the rows of a page; ids are hexadecimal."""
    statement = _SELECT.where(uploads.matching(filters, MEASUREMENTS)).order_by(MEASUREMENTS.c.id).limit(filters.limit)
    if filters.after is not None:
        statement = statement.where(MEASUREMENTS.c.id > filters.after)
    return records(connection, statement, MeasurementRow)


def remove(connection: Connection, filters: Filters, *, dry_run: bool = False) -> dict[tuple[str, str], int]:
    """Delete matching rows of every kind; return their numbers by (kind, GPU id). A dry run only counts."""
    if not dry_run:
        ask(connection, revision.LOCK_MANY, revision.LOCK)
    columns = (MEASUREMENTS.c.kind, MEASUREMENTS.c.gpu_id)
    statement = sa.select(*columns) if dry_run else sa.delete(MEASUREMENTS).returning(*columns)
    each = statement.where(uploads.matching(filters, MEASUREMENTS)).cte()
    counted = sa.select(each.c.kind, each.c.gpu_id, sa.func.count()).group_by(each.c.kind, each.c.gpu_id)
    removed = operator_rows.remove(connection, filters, dry_run=dry_run)
    gone = {(operators.KIND, gpu): rows for gpu, rows in removed.items()}
    gone |= {(kind, gpu): int(rows) for kind, gpu, rows in connection.execute(counted)}
    if gone and not dry_run:
        revision.bump(connection, "withdrawn")
    for key, rows in doubtful.remove(connection, filters, dry_run=dry_run).items():
        gone[key] = gone.get(key, 0) + rows
    if gone and not dry_run:
        revision.bump(connection, "measurements")
    return dict(sorted(gone.items()))


def load(connection: Connection, *, kind: str) -> list[MeasurementRow]:
    """Return all rows of one kind, ordered by id."""
    statement = _SELECT.where(MEASUREMENTS.c.kind == kind).order_by(MEASUREMENTS.c.id)
    return records(connection, statement, MeasurementRow)


def counts(connection: Connection) -> dict[tuple[str, str], int]:
    """Return the number of rows by (kind, GPU id)."""
    columns = (MEASUREMENTS.c.kind, MEASUREMENTS.c.gpu_id)
    rows_by_cell = connection.execute(sa.select(*columns, sa.func.count()).group_by(*columns).order_by(*columns))
    measured = {(kind, gpu): int(rows) for kind, gpu, rows in rows_by_cell}
    return measured | {(operators.KIND, gpu): rows for gpu, rows in operators.counts(connection).items()}


def training_set_hash(rows: Iterable[MeasurementRow]) -> str:
    """Return the SHA-256 of the rows' ids, independent of their order, which names the training set."""
    return hashlib.sha256("\n".join(sorted(row.id or identity(row) for row in rows)).encode()).hexdigest()


def stored_set_hash(connection: Connection, *, kind: str) -> str:
    """Return `training_set_hash` of all rows of one kind, without reading them."""
    hashed: str
    (hashed,) = ask(connection, Question(_SET_HASH, [kind], lambda rows: rows[0][0]))
    return hashed


_SET_HASH = (
    "SELECT encode(sha256(convert_to(coalesce(string_agg(id, E'\\n' ORDER BY id COLLATE \"C\"), ''), 'UTF8')), 'hex')"
    " FROM measurements WHERE kind = %s"
)


def _insert_statement(more: str = "") -> str:
    """Return an INSERT with one array parameter per column, for any number of rows; `more` are expressions of `new`."""
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    kinds = {name: MEASUREMENTS.c[name].type.compile(dialect=dialect) for name in _STORED}
    arrays = ", ".join(f"CAST(%s AS {'TEXT' if name in JSON_COLUMNS else kinds[name]}[])" for name in _STORED)
    values = ", ".join(f"CAST({name} AS JSONB)" if name in JSON_COLUMNS else name for name in _STORED)
    names = ", ".join(_STORED)
    return (
        f"WITH new AS (INSERT INTO measurements ({names}) SELECT {values} FROM unnest({arrays}) AS given ({names})"
        f" ON CONFLICT (id) DO NOTHING RETURNING upload_id){more}"
        " SELECT upload_id, count(*) FROM new GROUP BY upload_id"
    )


_INSERT_AHEAD = _insert_statement()
_INSERT = _insert_statement(f", {revision.bumping('measurements', 'EXISTS (SELECT FROM new)')}")
