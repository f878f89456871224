"""Few measured operators, added in one round trip to the database: COPY takes four, and a table to copy to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isnan
from typing import Any, NamedTuple

import msgspec
import numpy as np
from sqlalchemy import Connection

from app.store import operator_contexts, revision
from app.store.operator_blocks import NO_TIME, OperatorBlock, identities
from app.store.questions import Question, ask
from app.tables.arrays import Floats

# Rows beyond which COPY is faster.
FEW = 1_000


class Sent(NamedTuple):
    """A block, and the upload that brought it; None for imports."""

    block: OperatorBlock
    upload_id: int | None


def insert_few(connection: Connection, sent: Sequence[Sent]) -> dict[int | None, int]:
    """Add rows, and return the number of new ones by upload; the revision is incremented if there are any."""
    rows = [row for block, upload_id in sent for row in _objects(block, upload_id)]
    contexts = [item for block, _ in sent for item in block.contexts]
    add: Question[dict[int | None, int]] = Question(_ADD, [msgspec.json.encode(rows).decode()], dict)
    *_, inserted = ask(connection, revision.LOCK, operator_contexts.added(contexts), add)
    new: dict[int | None, int] = inserted
    return new


def _objects(block: OperatorBlock, upload_id: int | None) -> Iterator[dict[str, Any]]:
    """Yield the rows as objects of JSON, in which absent figures are null."""
    digests = [operator_contexts.digest(item) for item in block.contexts]
    times = np.datetime_as_string(block.measured_at.astype("datetime64[us]"), timezone="UTC").tolist()
    columns: dict[str, Sequence[Any]] = {
        "id": [row.tobytes().hex() for row in identities(block)],
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
        f"WITH new AS ({insert} ON CONFLICT (id) DO NOTHING RETURNING context_id, upload_id),"
        " grown AS (SELECT context_id, count(*) AS rows FROM new GROUP BY context_id),"
        " counted AS (UPDATE operator_contexts SET measurements = measurements + grown.rows FROM grown"
        " WHERE operator_contexts.id = grown.context_id)"
    )


# By upload.
NEW = "SELECT upload_id, count(*) FROM new GROUP BY upload_id"
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
    + f", {revision.bumping('added', 'EXISTS (SELECT FROM new)')} {NEW}"
)
