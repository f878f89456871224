"""Storage of measured operators: immutable, few in one round trip of SQL, and many by the million with binary COPY.

COPY takes four round trips, and a table to copy to. Rows share contexts, which are rows of a table of their own.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from math import isnan
from typing import Any, NamedTuple

import msgspec
import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Connection

from app.runtime.cancellation import check_cancelled
from app.store import revision
from app.store.driver import Cell, Question, Rows, ask, copy_in, encode, run, scalars
from app.store.operator_blocks import NO_TIME, Context, OperatorBlock, identities
from app.store.session import Database
from app.store.sql_tables import OPERATOR_CONTEXTS, OPERATOR_MEASUREMENTS
from app.store.uploads import Filters, agreeing
from app.tables.arrays import Bools, Bytes, Floats, Ints


def context_digest(context: Context) -> str:
    """Return the digest by which the database finds a context."""
    return str(uuid.UUID(bytes=context.digest()))


def add_contexts(contexts: Collection[Context]) -> Question[None]:
    """Ask to add the contexts that are missing, in a transaction that holds `revision.lock`."""
    rows = [{"digest": context_digest(item), **asdict(item)} for item in dict.fromkeys(contexts)]
    return Question(_ADD_CONTEXTS, [msgspec.json.encode(rows).decode()], lambda _: None)


def context_ids(connection: Connection, contexts: Collection[Context]) -> dict[Context, int]:
    """Return the database ids of the contexts, after adding missing ones. The transaction holds `revision.lock`."""
    digests = {item: context_digest(item) for item in dict.fromkeys(contexts)}
    _, known = ask(connection, add_contexts(digests), Question(_KNOWN_CONTEXTS, [[*digests.values()]], dict))
    return {item: known[name] for item, name in digests.items()}


_KNOWN_CONTEXTS = "SELECT digest::text, id FROM operator_contexts WHERE digest = ANY(%s::uuid[])"
_CONTEXT_COLUMNS = "digest, op, dtype, fields, gpu_id, software, source, kernel"
_ADD_CONTEXTS = (
    f"INSERT INTO operator_contexts ({_CONTEXT_COLUMNS}) SELECT {_CONTEXT_COLUMNS}"
    " FROM json_to_recordset(%s::json) AS given"
    " (digest uuid, op text, dtype text, fields text[], gpu_id text, software text, source text, kernel text)"
    " WHERE NOT EXISTS (SELECT FROM operator_contexts AS known WHERE known.digest = given.digest)"
)


# Rows beyond which COPY is faster.
FEW = 1_000


class Sent(NamedTuple):
    """A block, and the upload that brought it; None for imports."""

    block: OperatorBlock
    upload_id: int | None


class Added(NamedTuple):
    """New rows in blocks, as `stored_rows.load` reads them, with their ids, and the revision that they made."""

    revision: int
    parts: tuple[tuple[OperatorBlock, Bytes], ...]


class Inserted(NamedTuple):
    """Number of new rows by upload, and these rows; None if there are none, or too many to keep.

    `grown` is the number of new rows by context, if they are not counted there yet.
    """

    rows: Counter[int | None]
    added: Added | None = None
    grown: Mapping[int, int] | None = None


def insert_few(connection: Connection, sent: Sequence[Sent]) -> Inserted:
    """Add rows; the revision is incremented if any is new."""
    ids = [identities(block) for block, _ in sent]
    rows = [row for each, names in zip(sent, ids, strict=True) for row in _objects(each, names)]
    contexts = [item for block, _ in sent for item in block.contexts]
    add: Question[Rows] = Question(_ADD_FEW, [msgspec.json.encode(rows).decode()], list)
    before, _, new = ask(connection, revision.LOCK, add_contexts(contexts), add)
    parts = _new_parts(zip((each.block for each in sent), ids, strict=True), {row_id.bytes for row_id, _ in new})
    return Inserted(Counter(upload_id for _, upload_id in new), Added(before + 1, tuple(parts)) if new else None)


def _new_parts(parts: Iterable[tuple[OperatorBlock, Bytes]], new: set[bytes]) -> Iterator[tuple[OperatorBlock, Bytes]]:
    """Yield the new rows, each once, without the figures that nothing learns from."""
    for sent, ids in parts:
        places = {name: k for k, name in enumerate(map(bytes, ids)) if name in new}
        new = new - places.keys()
        if rows := [*places.values()]:
            none, undated = np.full(len(rows), np.nan), np.full(len(rows), NO_TIME)
            block = replace(sent.take(np.array(rows)), latency_std_s=none, runs=none, measured_at=undated)
            yield replace(block, clock_hz=none, power_w=none), ids[rows]


def _objects(sent: Sent, ids: Bytes) -> Iterator[dict[str, Any]]:
    """Yield the rows as objects of JSON, in which absent figures are null."""
    block, upload_id = sent
    digests = [context_digest(item) for item in block.contexts]
    times = np.datetime_as_string(block.measured_at.astype("datetime64[us]"), timezone="UTC").tolist()
    columns: dict[str, Sequence[Any]] = {
        "id": [row.tobytes().hex() for row in ids],
        "digest": [digests[k] for k in block.context.tolist()],
        "dims": [["NaN" if isnan(value) else value for value in row] for row in block.dims.T.tolist()],
        "measured_at": [
            None if at == NO_TIME else time for at, time in zip(block.measured_at.tolist(), times, strict=True)
        ],
        "grid": _extents(block.grid),
        "block": _extents(block.block),
        **{name: getattr(block, name).tolist() for name in _FIGURES},
    }
    for values in zip(*columns.values(), strict=True):
        yield {**dict(zip(columns, values, strict=True)), "upload_id": upload_id}


def _extents(extents: Floats) -> list[list[float] | None]:
    return [None if isnan(row[0]) else row for row in extents.T.tolist()]


_GROWN = "UPDATE operator_contexts SET measurements = measurements + grown.rows FROM {} WHERE id = grown.context_id"
_COUNT = _GROWN.format("unnest(%s::integer[], %s::bigint[]) AS grown (context_id, rows)")
_FIGURES = ("latency_s", "latency_std_s", "runs", "clock_hz", "power_w")
_COLUMNS = f"dims, {', '.join(_FIGURES)}, measured_at, grid, block"
_ADD_FEW = (
    f"WITH new AS (INSERT INTO operator_measurements (id, context_id, added, upload_id, {_COLUMNS})"
    f" SELECT given.id, contexts.id, revision.value + 1, given.upload_id, {_COLUMNS}"
    " FROM json_to_recordset(%s::json) AS given (id uuid, digest uuid, upload_id bigint, dims float8[],"
    f" {', '.join(f'{name} float8' for name in _FIGURES)}, measured_at timestamptz, grid float8[], block float8[])"
    " JOIN operator_contexts AS contexts USING (digest), revision ORDER BY given.id, given.upload_id"
    " ON CONFLICT (id) DO NOTHING RETURNING id, context_id, upload_id),"
    " grown AS (SELECT context_id, count(*) AS rows FROM new GROUP BY context_id),"
    f" counted AS ({_GROWN.format('grown')}),"
    f" {revision.bumping('added', 'EXISTS (SELECT FROM new)')} SELECT id, upload_id FROM new"
)


# Rows per COPY, and of them those that are encoded at once: some 10 ms and 2 MB.
CHUNK, _STEP = 100_000, 10_000
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
    if not sent:
        return Inserted(Counter())
    if sum(len(block) for block, _ in sent) <= FEW:
        return insert_few(connection, sent)
    # Two writers of the same contexts could deadlock.
    before = revision.lock(connection)
    inserted = _insert_many(connection, sent, before + 1)
    publish(connection, inserted)
    return Inserted(inserted.rows)


def insert_ahead(connection: Connection, sent: Sequence[Sent], upload_id: int) -> Inserted:
    """Add the rows of an upload, whose contexts are there, before their revision is known: `publish` makes it.

    The transaction holds `revision.LOCK_MANY`, and `revision.lock` only from then on.
    """
    return _insert_many(connection, sent, -upload_id)


def publish(connection: Connection, inserted: Inserted) -> int | None:
    """Count new rows in their contexts, and increment the revision; return it. None: there are none.

    The transaction holds `revision.lock`.
    """
    if not inserted.grown:
        return None
    ask(connection, Question(_COUNT, [[*inserted.grown], [*inserted.grown.values()]], len))
    return revision.bump(connection, "added")


def _insert_many(connection: Connection, sent: Sequence[Sent], added: int) -> Inserted:
    rows, grown = Counter[int | None](), Counter[int]()
    ask(connection, *_MAKE_ROOM)
    for parts in _chunks(sent):
        for context_id, upload_id, new in _insert(connection, parts, added):
            rows[upload_id] += new
            grown[context_id] += new
    return Inserted(rows, None, grown)


def add_missing_contexts(database: Database, contexts: Collection[Context]) -> None:
    """Add contexts in transactions of their own, none of which takes long."""
    digests = {item: context_digest(item) for item in dict.fromkeys(contexts)}
    with database.begin() as connection:
        (known,) = ask(connection, Question(_KNOWN_CONTEXTS, [[*digests.values()]], dict))
    missing = [item for item, digest in digests.items() if digest not in known]
    for first in range(0, len(missing), FEW):
        with database.begin() as connection:
            ask(connection, revision.LOCK, add_contexts(missing[first : first + FEW]))


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
    run(connection, _MAKE_ROOM_FOR_IDS)
    parts = (part for block in blocks for part in _parts(block))
    ids = (encode([Cell("id", "uuid")], {"id": identities(part)}, len(part)) for part in parts)
    copy_in(connection, "COPY given_ids (id) FROM STDIN (FORMAT BINARY)", ids)
    return int(connection.execute(_COUNT_NEW).scalar_one())


def _parts(block: OperatorBlock) -> Iterator[OperatorBlock]:
    if len(block) <= _STEP:
        yield block
        return
    for first in range(0, len(block), _STEP):
        yield block.take(np.arange(first, min(first + _STEP, len(block))))


def _insert(connection: Connection, sent: Sequence[Sent], added: int) -> list[tuple[int, int | None, int]]:
    """Add the rows of one chunk; return the number of new ones by context and upload."""
    ids = context_ids(connection, [item for block, _ in sent for item in block.contexts])
    names = ", ".join(cell.name for cell in _cells(0))

    def rows() -> Iterator[bytes]:
        for block, upload_id in sent:
            check_cancelled()
            of_block = np.array([ids[item] for item in block.contexts], dtype=np.intp)
            stamp: Stamp = {"added": added, "upload_id": upload_id}
            yield from _encoded(_cells(len(block.dims)), block, of_block, stamp)

    run(connection, "TRUNCATE given")  # rows of the same transaction
    copy_in(connection, f"COPY given ({names}) FROM STDIN (FORMAT BINARY)", rows())
    new: list[tuple[int, int | None, int]]
    (new,) = ask(connection, _TAKE_NEW)
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
_TAKE_NEW: Question[list[tuple[int, int | None, int]]] = Question(
    "WITH new AS (INSERT INTO operator_measurements SELECT * FROM given ORDER BY id, upload_id"
    " ON CONFLICT (id) DO NOTHING RETURNING context_id, upload_id)"
    " SELECT context_id, upload_id, count(*) FROM new GROUP BY context_id, upload_id",
    (),
    list,
)


def known(connection: Connection, ids: Bytes) -> Bools:
    """Return True for identities that are stored, bool [n]."""
    (are_stored,) = ask(connection, stored(ids))
    return np.array(are_stored, dtype=np.bool_)


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
    pattern = (1 << np.arange(len(cells))) @ absent  # numbers are sorted without Python's lock, columns are not
    for number in np.unique(pattern).tolist():
        rows = np.flatnonzero(pattern == number)
        missing = absent[:, rows[0]].tolist()
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


def added_after(connection: Connection, since: int) -> str:
    """Return the condition that rows were added after a revision.

    Rows of an upload of many have no revision of their own, but that of their upload.
    """
    ahead = Question("SELECT -id FROM uploads WHERE revision > %s", [since], scalars)
    (ids,) = ask(connection, ahead)
    own = f"added > {since:d}"
    return f"({own} OR added IN ({', '.join(f'{number:d}' for number in ids)}))" if ids else own


def any_powered(connection: Connection, *, since: int) -> bool:
    """Return whether a row with a power was added after the revision `since`."""
    powered = sa.select(_M.id).where(sa.text(added_after(connection, since)), _M.power_w > 0)
    return bool(connection.execute(sa.select(powered.exists())).scalar_one())


def agreeing_contexts(filters: Filters) -> ColumnElement[bool]:
    """Return the condition that a context matches the filters, all of which apply to contexts."""
    columns = {_C.gpu_id: filters.gpu, _C.op: filters.name, _C.software: filters.software, _C.source: filters.source}
    return agreeing(columns) if filters.kind in (None, KIND) else sa.false()
