"""Revision number: incremented by every change that running API processes must notice, and which part it changed."""

from __future__ import annotations

from typing import Literal, get_args

import sqlalchemy as sa
from sqlalchemy import Connection

from app.store.driver import Question, ask
from app.store.sql_tables import REVISION

# What a process loads by itself. `added` and `removed` are rows of operators, `withdrawn` removed ones of every kind.
Part = Literal["gpus", "keys", "measurements", "added", "removed", "withdrawn", "prices", "versions"]
PARTS: frozenset[Part] = frozenset(get_args(Part))
# Stands for all of them: releases before 0.3 named no part.
_ANY = "*"
# Stands for the revision itself.
_NOW = ""


def lock(connection: Connection) -> int:
    """Take the exclusive lock for changes, until the transaction ends; return the revision.

    A writer of several rows takes it first and waits for nothing that another holder waits for. Otherwise two uploads
    of the same rows, or of the same new GPUs, could deadlock.
    """
    (value,) = ask(connection, LOCK)
    return int(value)


LOCK: Question[int] = Question("SELECT value FROM revision FOR UPDATE", (), lambda rows: rows[0][0])

# The exclusive lock of whoever stores or removes many rows, taken before `LOCK`. An upload of many rows holds only this
# one while it inserts them, so that others' few rows are stored meanwhile, and `LOCK` for its end.
LOCK_MANY: Question[None] = Question("SELECT pg_advisory_xact_lock(%s)", [0x6D616E79], lambda _: None)


def bump(connection: Connection, part: Part) -> int:
    """Increment the revision in the change's own transaction, as a change of `part`; return the new value.

    The transaction holds `lock`; otherwise the statement could miss the part of a revision that it waits for.
    """
    (value,) = ask(connection, Question(f"WITH {bumping(part)} SELECT value FROM bumped", (), lambda rows: rows[0][0]))
    return int(value)


def bumping(part: Part, condition: str = "true") -> str:
    """Return table expressions for a WITH that do what `bump` does if an SQL condition holds; `bumped` has the value.

    A revision that no part has was made by an older release: whatever it changed, all is loaded again.
    """
    return (
        f"bumped AS (UPDATE revision SET value = value + 1 WHERE {condition} RETURNING value),"
        " latest AS (SELECT coalesce(max(revision), 0) AS revision FROM revision_parts),"
        f" changed AS (SELECT '{part}' AS part, value FROM bumped"
        f" UNION ALL SELECT '{_ANY}', value - 1 FROM bumped, latest WHERE value - 1 > latest.revision),"
        " noted AS (INSERT INTO revision_parts (part, revision) SELECT part, value FROM changed"
        " ON CONFLICT (part) DO UPDATE SET revision = excluded.revision)"
    )


_REVISIONS: Question[dict[str, int]] = Question(
    f"SELECT part, revision FROM revision_parts UNION ALL SELECT '{_NOW}', value FROM revision", (), dict
)


def current(connection: Connection) -> int:
    """Return the committed revision."""
    return int(connection.execute(sa.select(REVISION.c.value)).scalar_one())


def changed(connection: Connection, since: int | None) -> tuple[int, frozenset[Part]]:
    """Return the revision, and the parts that changed after the revision `since`; all of them if it is None."""
    revisions: dict[str, int]
    (revisions,) = ask(connection, _REVISIONS)
    now = revisions.pop(_NOW)
    if since is None:
        return now, PARTS
    if revisions.get(_ANY, 0) > since or max(revisions.values(), default=0) < now:
        return now, PARTS
    return now, frozenset(part for part in PARTS if revisions.get(part, 0) > since)
