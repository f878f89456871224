"""Storage of API keys as SHA-256 hashes of 256 random bits, so that a stolen database gives no access."""

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
from app.store.sql_tables import API_KEYS as KEYS

PREFIX = "gpucast_"  # lets secret scanners recognise keys
LOCK = 0x6B657973  # "keys": serialises the creation of the first key


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key, without its secret."""

    id: int
    name: str
    role: Role
    created_at: datetime
    revoked_at: datetime | None


def digest(key: str | bytes) -> bytes:
    """Return the stored hash of a key."""
    return hashlib.sha256(key.encode() if isinstance(key, str) else key).digest()


def create(connection: Connection, name: str, role: Role) -> tuple[Key, str]:
    """Create a key; return it with its secret, which is not stored."""
    secret = PREFIX + secrets.token_urlsafe(32)
    statement = sa.insert(KEYS).values(name=name, role=role.name.lower(), sha256=digest(secret))
    row = connection.execute(statement.returning(*_columns())).one()
    revision.bump(connection)
    return _key(row), secret


def create_first(connection: Connection) -> str | None:
    """Create and return the secret of an admin key if there is no active one; else return None."""
    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(LOCK)))
    admins = sa.select(KEYS.c.id).where(KEYS.c.role == "admin", KEYS.c.revoked_at.is_(None))
    if connection.execute(admins.limit(1)).one_or_none() is not None:
        return None
    return create(connection, "first", Role.ADMIN)[1]


def listed(connection: Connection) -> list[Key]:
    """Return all keys, including revoked ones, ordered by id."""
    return [_key(row) for row in connection.execute(sa.select(*_columns()).order_by(KEYS.c.id))]


def active(connection: Connection) -> dict[bytes, Key]:
    """Return the keys that are not revoked, by SHA-256."""
    statement = sa.select(KEYS.c.sha256, *_columns()).where(KEYS.c.revoked_at.is_(None))
    return {sha256: _key(row) for sha256, *row in connection.execute(statement)}


def revoke(connection: Connection, key_id: int) -> None:
    """Revoke a key; raises NotFound if it does not exist or is revoked."""
    statement = sa.update(KEYS).where(KEYS.c.id == key_id, KEYS.c.revoked_at.is_(None))
    if connection.execute(statement.values(revoked_at=sa.func.now())).rowcount == 0:
        raise NotFound(f"No key that is in use has the id {key_id}.")
    revision.bump(connection)


def _columns() -> list[sa.Column[Any]]:
    return [KEYS.c[item.name] for item in fields(Key)]


def _key(row: Sequence[Any]) -> Key:
    key_id, name, role, created_at, revoked_at = row
    return Key(id=key_id, name=name, role=Role[role.upper()], created_at=created_at, revoked_at=revoked_at)
