"""Contexts of measured operators in the database."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import asdict

import msgspec
from sqlalchemy import Connection

from app.store.operator_blocks import Context
from app.store.questions import Question, ask


def digest(context: Context) -> str:
    """Return the digest by which the database finds a context."""
    return str(uuid.UUID(bytes=context.digest()))


def added(contexts: Collection[Context]) -> Question[None]:
    """Ask to add the contexts that are missing, in a transaction that holds `revision.lock`."""
    rows = [{"digest": digest(item), **asdict(item)} for item in dict.fromkeys(contexts)]
    return Question(_ADD, [msgspec.json.encode(rows).decode()], lambda _: None)


def ids_of(connection: Connection, contexts: Collection[Context]) -> dict[Context, int]:
    """Return the database ids of the contexts, after adding missing ones. The transaction holds `revision.lock`."""
    digests = {item: digest(item) for item in dict.fromkeys(contexts)}
    statement = "SELECT digest::text, id FROM operator_contexts WHERE digest = ANY(%s::uuid[])"
    _, known = ask(connection, added(digests), Question(statement, [list(digests.values())], dict))
    return {item: known[name] for item, name in digests.items()}


_NAMES = "digest, op, dtype, fields, gpu_id, software, source, kernel"
_ADD = (
    f"INSERT INTO operator_contexts ({_NAMES}) SELECT {_NAMES} FROM json_to_recordset(%s::json) AS given"
    " (digest uuid, op text, dtype text, fields text[], gpu_id text, software text, source text, kernel text)"
    " WHERE NOT EXISTS (SELECT FROM operator_contexts AS known WHERE known.digest = given.digest)"
)
