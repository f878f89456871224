"""API keys: stored as the SHA-256 of 256 random bits, so that what is stolen from here opens nothing."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from app.errors import NotFound
from app.store import revision
from app.store.roles import Role
from app.store.rows import API_KEYS as KEYS

PREFIX = "gpucast_"  # by which a key is known as one where it should not be: in a repository, say
LOCK = 0x6B657973  # "keys": two processes that start at once make one first key


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key, without the key."""

    id: int
    name: str
    role: Role
    created_at: datetime
    revoked_at: datetime | None


def digest(key: str | bytes) -> bytes:
    """What is stored of a key."""
    return hashlib.sha256(key.encode() if isinstance(key, str) else key).digest()


def create(connection: Connection, name: str, role: Role) -> tuple[Key, str]:
    """A new key, and the key itself, which nobody can be told again."""
    secret = PREFIX + secrets.token_urlsafe(32)
    statement = sa.insert(KEYS).values(name=name, role=role.name.lower(), sha256=digest(secret))
    found = connection.execute(statement.returning(*_columns())).one()
    revision.bump(connection)
    return _key(found), secret


def create_first(connection: Connection) -> str | None:
    """An admin's key where no admin has one; None otherwise."""
    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(LOCK)))
    admins = sa.select(KEYS.c.id).where(KEYS.c.role == "admin", KEYS.c.revoked_at.is_(None))
    if connection.execute(admins.limit(1)).one_or_none() is not None:
        return None
    return create(connection, "first", Role.ADMIN)[1]


def listed(connection: Connection) -> list[Key]:
    """Every key, those revoked too, in the order of their ids."""
    return [_key(found) for found in connection.execute(sa.select(*_columns()).order_by(KEYS.c.id))]


def active(connection: Connection) -> dict[bytes, Key]:
    """The keys that open something, by their SHA-256."""
    statement = sa.select(KEYS.c.sha256, *_columns()).where(KEYS.c.revoked_at.is_(None))
    return {sha256: _key(found) for sha256, *found in connection.execute(statement)}


def revoke(connection: Connection, key_id: int) -> None:
    """Let a key open nothing any more; NotFound if there is none, or it is revoked already."""
    statement = sa.update(KEYS).where(KEYS.c.id == key_id, KEYS.c.revoked_at.is_(None))
    if connection.execute(statement.values(revoked_at=sa.func.now())).rowcount == 0:
        raise NotFound(f"No key that is in use has the id {key_id}.")
    revision.bump(connection)


def _columns() -> list[sa.Column[Any]]:
    return [KEYS.c[item.name] for item in fields(Key)]


def _key(found: Sequence[Any]) -> Key:
    key_id, name, role, created_at, revoked_at = found
    return Key(id=key_id, name=name, role=Role[role.upper()], created_at=created_at, revoked_at=revoked_at)
