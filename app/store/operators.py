"""Storage of measured operators: immutable, and written by the million with binary COPY."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Connection

from app.store import operator_contexts, revision
from app.store.binary_copy import Cell, encode
from app.store.copying import copy_in, run
from app.store.few_operators import FEW, Inserted, Sent, counting, insert_few
from app.store.measurement_filters import Filters, agreeing
from app.store.operator_blocks import NO_TIME, OperatorBlock, identities
from app.store.questions import Question, Rows, ask, scalars
from app.store.sql_tables import OPERATOR_CONTEXTS, OPERATOR_MEASUREMENTS
from app.tables.arrays import Bools, Bytes, Floats, Ints

# Rows per COPY: keeps a large import within tens of megabytes.
CHUNK = 100_000
KIND = "operator"
# PostgreSQL counts microseconds from 2000-01-01.
_EPOCH_US = 946_684_800_000_000
_C, _M = OPERATOR_CONTEXTS.c, OPERATOR_MEASUREMENTS.c
# Columns that are the same in all rows of an upload.
Stamp = dict[str, int | None]


def insert(connection: Connection, sent: Sequence[Sent]) -> Inserted:
    """Add rows in the caller's transaction; known rows are unchanged. Of equal rows those of the first upload are new.

    The revision is incremented if any is new.
    """
    inserted: Counter[int | None] = Counter()
    if not sent:
        return Inserted(inserted, None)
    if sum(len(block) for block, _ in sent) <= FEW:
        return insert_few(connection, sent)
    # Two writers of the same contexts could deadlock.
    before, *_ = ask(connection, revision.LOCK, *_MAKE_ROOM)
    for number, parts in enumerate(_chunks(sent)):
        if number:
            run(connection, "TRUNCATE given")
        inserted.update(_insert(connection, parts, before + 1))
    if inserted:
        revision.bump(connection, "added")
    return Inserted(inserted, None)


def _chunks(sent: Sequence[Sent]) -> Iterator[list[Sent]]:
    """Yield the rows in lists of about CHUNK rows."""
    chunk, rows = list[Sent](), 0
    for part in (Sent(part, upload_id) for block, upload_id in sent for part in _parts(block)):
        if chunk and rows + len(part.block) > CHUNK:
            yield chunk
            chunk, rows = [], 0
        chunk.append(part)
        rows += len(part.block)
    if chunk:
        yield chunk


def count_new(connection: Connection, blocks: Sequence[OperatorBlock]) -> int:
    """Return the number of rows that `insert` would add, without changes."""
    return sum(_count_new(connection, part) for block in blocks for part in _parts(block))


def _count_new(connection: Connection, block: OperatorBlock) -> int:
    run(connection, _MAKE_ROOM_FOR_IDS)
    ids = encode([Cell("id", "uuid")], {"id": identities(block)}, len(block))
    copy_in(connection, "COPY given_ids (id) FROM STDIN (FORMAT BINARY)", [ids])
    return int(connection.execute(_COUNT_NEW).scalar_one())


def _parts(block: OperatorBlock) -> Iterator[OperatorBlock]:
    for first in range(0, len(block), CHUNK):
        yield block.take(np.arange(first, min(first + CHUNK, len(block))))


def _insert(connection: Connection, sent: Sequence[Sent], added: int) -> dict[int | None, int]:
    """Add the rows of one chunk; return the number of new ones by upload."""
    ids = operator_contexts.ids_of(connection, [item for block, _ in sent for item in block.contexts])
    names = ", ".join(cell.name for cell in _cells(0))

    def rows() -> Iterator[bytes]:
        for block, upload_id in sent:
            of_block = np.array([ids[item] for item in block.contexts], dtype=np.intp)
            stamp: Stamp = {"added": added, "upload_id": upload_id}
            yield from _encoded(_cells(len(block.dims)), block, of_block, stamp)

    copy_in(connection, f"COPY given ({names}) FROM STDIN (FORMAT BINARY)", rows())
    (inserted,) = ask(connection, _TAKE_NEW)
    new: dict[int | None, int] = inserted
    return new


# Empty at the start of each transaction. It stays with its connection: to create one costs more than to store a row.
_MAKE_ROOM = tuple(
    Question(statement, (), len)
    for statement in (
        "SET LOCAL client_min_messages = warning",
        "CREATE TEMP TABLE IF NOT EXISTS given (LIKE operator_measurements INCLUDING DEFAULTS) ON COMMIT DELETE ROWS",
    )
)
_MAKE_ROOM_FOR_IDS = "CREATE TEMP TABLE IF NOT EXISTS given_ids (id UUID NOT NULL) ON COMMIT DROP; TRUNCATE given_ids"
_COUNT_NEW = sa.text(
    "SELECT count(DISTINCT given_ids.id) FROM given_ids"
    " WHERE NOT EXISTS (SELECT FROM operator_measurements AS known WHERE known.id = given_ids.id)"
)
_TAKE_NEW: Question[dict[int | None, int]] = Question(
    counting("INSERT INTO operator_measurements SELECT * FROM given ORDER BY id, upload_id")
    + " SELECT upload_id, count(*) FROM new GROUP BY upload_id",
    (),
    dict,
)


def known(connection: Connection, ids: Bytes) -> Bools:
    """Return True for identities that are stored, bool [n]."""
    (found,) = ask(connection, stored(ids))
    return np.array(found, dtype=np.bool_)


def stored(ids: Bytes) -> Question[Bools]:
    """Ask which identities are stored: True for those, bool [n]."""
    names = [uuid.UUID(bytes=row.tobytes()) for row in ids]

    def mask(rows: Rows) -> Bools:
        there = {*scalars(rows)}
        return np.array([name in there for name in names], dtype=np.bool_)

    return Question("SELECT id FROM operator_measurements WHERE id = ANY(%s)", [names], mask)


def _cells(fields: int) -> tuple[Cell, ...]:
    return (
        Cell("id", "uuid"),
        Cell("context_id", "int4"),
        Cell("latency_s", "float8"),
        Cell("dims", "float8", fields),
        Cell("latency_std_s", "float8"),
        Cell("runs", "int4"),
        Cell("clock_hz", "float8"),
        Cell("power_w", "float8"),
        Cell("measured_at", "int8"),
        Cell("grid", "int4", 3),
        Cell("block", "int4", 3),
        Cell("added", "int8"),
        Cell("upload_id", "int8"),
    )


def _encoded(cells: Sequence[Cell], block: OperatorBlock, context_ids: Ints, stamp: Stamp) -> Iterator[bytes]:
    """Yield the encoded rows in groups with the same absent cells, whose rows have one width."""
    columns: dict[str, NDArray[Any]] = {
        "id": identities(block),
        "context_id": context_ids[block.context],
        "latency_s": block.latency_s,
        "dims": block.dims.T,
        "latency_std_s": block.latency_std_s,
        "runs": block.runs,
        "clock_hz": block.clock_hz,
        "power_w": block.power_w,
        "measured_at": block.measured_at - np.int64(_EPOCH_US),
        "grid": block.grid.T,
        "block": block.block.T,
        **{name: np.full(len(block), value or 0) for name, value in stamp.items()},
    }
    absent = np.stack(
        [np.full(len(block), stamp.get(cell.name, 0) is None) | _absent(block, cell.name) for cell in cells]
    )
    patterns, pattern = np.unique(absent, axis=1, return_inverse=True)
    for k, missing in enumerate(patterns.T):
        rows = np.flatnonzero(pattern.ravel() == k)
        parts = {
            cell.name: None if gone else columns[cell.name][rows] for cell, gone in zip(cells, missing, strict=True)
        }
        yield encode(cells, parts, len(rows))


def _absent(block: OperatorBlock, name: str) -> NDArray[np.bool_]:
    """Return True for rows without this figure."""
    if name in ("id", "context_id", "latency_s", "dims", "added", "upload_id"):
        return np.zeros(len(block), dtype=np.bool_)
    if name == "measured_at":
        absent: NDArray[np.bool_] = block.measured_at == NO_TIME
        return absent
    values: Floats = getattr(block, name)
    return np.isnan(values if values.ndim == 1 else values[0])


def counts(connection: Connection, *, ops: Collection[str] | None = None) -> dict[str, int]:
    """Return the number of rows by GPU id, of the operators `ops` (default: all)."""
    total = sa.func.sum(_C.measurements)
    selected = sa.true() if ops is None else _C.op.in_(ops)
    every = sa.select(_C.gpu_id, total).where(selected).group_by(_C.gpu_id).having(total > 0).order_by(_C.gpu_id)
    return {gpu: int(rows) for gpu, rows in connection.execute(every)}


def any_powered(connection: Connection, *, since: int) -> bool:
    """Return whether a row with a power was added after the revision `since`."""
    powered = sa.select(_M.id).where(_M.added > since, _M.power_w > 0)
    return bool(connection.execute(sa.select(powered.exists())).scalar_one())


def agreeing_contexts(filters: Filters) -> ColumnElement[bool]:
    """Return the condition that a context matches the filters, all of which apply to contexts."""
    columns = {_C.gpu_id: filters.gpu, _C.op: filters.name, _C.software: filters.software, _C.source: filters.source}
    return agreeing(columns) if filters.kind in (None, KIND) else sa.false()
