"""Few measured operators, added in one round trip to the database: COPY takes four, and a table to copy to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import isnan
from typing import Any, NamedTuple

import msgspec
import numpy as np
from sqlalchemy import Connection

from app.store import operator_contexts, revision
from app.store.operator_blocks import NO_TIME, OperatorBlock, identities
from app.store.questions import Question, Rows, ask
from app.tables.arrays import Bytes, Floats

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
    """Number of new rows by upload, and these rows; None if there are none, or too many to keep."""

    rows: Counter[int | None]
    added: Added | None


def insert_few(connection: Connection, sent: Sequence[Sent]) -> Inserted:
    """Add rows; the revision is incremented if any is new."""
    ids = [identities(block) for block, _ in sent]
    rows = [row for each, names in zip(sent, ids, strict=True) for row in _objects(each, names)]
    contexts = [item for block, _ in sent for item in block.contexts]
    add: Question[Rows] = Question(_ADD, [msgspec.json.encode(rows).decode()], list)
    before, _, new = ask(connection, revision.LOCK, operator_contexts.added(contexts), add)
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
    digests = [operator_contexts.digest(item) for item in block.contexts]
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


def counting(insert: str) -> str:
    """Return the start of a statement that adds rows, and counts those of each context; they are its table `new`."""
    return (
        f"WITH new AS ({insert} ON CONFLICT (id) DO NOTHING RETURNING id, context_id, upload_id),"
        " grown AS (SELECT context_id, count(*) AS rows FROM new GROUP BY context_id),"
        " counted AS (UPDATE operator_contexts SET measurements = measurements + grown.rows FROM grown"
        " WHERE operator_contexts.id = grown.context_id)"
    )


_FIGURES = ("latency_s", "latency_std_s", "runs", "clock_hz", "power_w")
_NAMES = f"dims, {', '.join(_FIGURES)}, measured_at, grid, block"
_ADD = (
    counting(
        f"INSERT INTO operator_measurements (id, context_id, added, upload_id, {_NAMES})"
        f" SELECT given.id, contexts.id, revision.value + 1, given.upload_id, {_NAMES}"
        " FROM json_to_recordset(%s::json) AS given (id uuid, digest uuid, upload_id bigint, dims float8[],"
        f" {', '.join(f'{name} float8' for name in _FIGURES)}, measured_at timestamptz, grid float8[], block float8[])"
        " JOIN operator_contexts AS contexts USING (digest), revision ORDER BY given.id, given.upload_id"
    )
    + f", {revision.bumping('added', 'EXISTS (SELECT FROM new)')} SELECT id, upload_id FROM new"
)
