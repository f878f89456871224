"""Storage of API keys as SHA-256 hashes of 256 random bits, so that a stolen database gives no access, and their roles.

Requests of callers are counted by each process of all replicas, by the clock of the database, which all share: their
own may be wrong.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection
from sqlalchemy.dialects.postgresql import insert

from app.errors import Conflict, NotFound
from app.store import revision
from app.store.roles import Role
from app.store.sql_tables import API_KEYS as KEYS
from app.store.sql_tables import KEY_EVENTS as EVENTS
from app.store.sql_tables import RATE_COUNTS, columns_of, records

PREFIX = "gpucast_"  # lets secret scanners recognise keys
COMMAND = "command line"  # an actor
LOCK = 0x6B657973  # "keys": serialises the creation of the first key
OWNED_LOCK = 0x6F776E73  # "owns", with the id of a key: serialises what is added for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key, without its secret; `ends`: when it expires on this machine's `_running_s`, infinity: never."""

    id: int
    name: str
    role: Role
    created_at: datetime
    revoked_at: datetime | None
    expires_at: datetime | None
    first_id: int | None
    ends: float

    @property
    def owner_id(self) -> int:
        """The id under which it owns what it saves: that of the first key which it succeeds by rotation."""
        return self.id if self.first_id is None else self.first_id

    def is_expired(self) -> bool:
        """Return whether its time is over, by the database's clock: a replica's own may be wrong."""
        return self.ends <= _running_s()


def _running_s() -> float:
    """Return seconds since some time in the past, those in which the machine slept included where that is known."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something done to a key. `action` is created, rotated or revoked; `actor` is "key 1" or a command."""

    key_id: int
    action: str
    actor: str
    created_at: datetime


def digest(key: str | bytes) -> bytes:
    """Return the stored hash of a key."""
    return hashlib.sha256(key.encode() if isinstance(key, str) else key).digest()


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose saved answers and graphs a request may list and remove: its key's, or everybody's.

    `owner_id` is None where no key is required.
    """

    owner_id: int | None
    everybody: bool

    def owns(self, key_id: ColumnElement[Any]) -> ColumnElement[bool]:
        """Return the condition that a row's key is the caller's."""
        return sa.true() if self.everybody else key_id == self.owner_id

    def sent(self, key_id: ColumnElement[Any]) -> ColumnElement[bool]:
        """Return the condition that the caller's key sent a row, or one that it succeeds by rotation."""
        own = sa.select(KEYS.c.id).where(sa.func.coalesce(KEYS.c.first_id, KEYS.c.id) == self.owner_id)
        return sa.true() if self.everybody else key_id.in_(own)


ANYONE = Caller(owner_id=None, everybody=True)


@dataclass(frozen=True, slots=True)
class Owner:
    """The key that something is saved for, None where no key is required, and most rows of its kind that a key owns."""

    key_id: int | None
    most: int


NOBODY = Owner(key_id=None, most=0)


def check_owned(connection: Connection, key_id: sa.Column[Any], owner: Owner, advice: str) -> None:
    """Raise Conflict if a key owns as many rows as it may; until the transaction ends no other adds some for it."""
    if owner.key_id is None:
        return
    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(OWNED_LOCK, owner.key_id)))
    owned = connection.execute(sa.select(sa.func.count()).where(key_id == owner.key_id)).scalar_one()
    if owned >= owner.most:
        raise Conflict(f"This API key has {owned:,} of at most {owner.most:,} {advice}")


def create(
    connection: Connection,
    name: str,
    role: Role,
    *,
    lifetime: timedelta | None = None,
    actor: str = COMMAND,
    first_id: int | None = None,
) -> tuple[Key, str]:
    """Create a key that expires after `lifetime`, or never; return it with its secret, which is not stored."""
    secret = PREFIX + secrets.token_urlsafe(32)
    expires_at = None if lifetime is None else sa.func.now() + lifetime
    values = {"name": name, "role": role.name.lower(), "expires_at": expires_at, "first_id": first_id}
    statement = sa.insert(KEYS).values(sha256=digest(secret), **values)
    made = _key(connection.execute(statement.returning(*_columns())).one())
    _record(connection, made.id, "created", actor)
    revision.lock(connection)
    revision.bump(connection, "keys")
    return made, secret


def create_first(connection: Connection) -> str | None:
    """Create and return the secret of an admin key if there is no active one; else return None."""
    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(LOCK)))
    admins = sa.select(KEYS.c.id).where(KEYS.c.role == "admin", _is_active())
    if connection.execute(admins.limit(1)).one_or_none() is not None:
        return None
    return create(connection, "first", Role.ADMIN, actor="first start")[1]


def rotate(connection: Connection, key_id: int, *, grace: timedelta, actor: str = COMMAND) -> tuple[Key, str]:
    """Create the successor of a key: its name, role, lifetime and saved rows; the old one expires after `grace`.

    Returns it with its secret. Raises NotFound if the key does not exist, or is revoked or expired, and Conflict if it
    has a successor.
    """
    selected = connection.execute(sa.select(*_columns()).where(KEYS.c.id == key_id, _is_active()).with_for_update())
    row = selected.one_or_none()
    if row is None:
        raise NotFound(f"No key that is in use has the id {key_id}.")
    rotated = sa.select(EVENTS.c.id).where(EVENTS.c.key_id == key_id, EVENTS.c.action == "rotated")
    if connection.execute(rotated).first() is not None:
        raise Conflict(f"Key {key_id} has a successor already; rotate that one, or create a key.")
    old = _key(row)
    lifetime = None if old.expires_at is None else old.expires_at - old.created_at
    end = sa.func.least(KEYS.c.expires_at, sa.func.now() + grace)  # which ignores NULL
    connection.execute(sa.update(KEYS).where(KEYS.c.id == key_id).values(expires_at=end))
    _record(connection, key_id, "rotated", actor)
    return create(connection, old.name, old.role, lifetime=lifetime, actor=actor, first_id=old.owner_id)


def listed(connection: Connection) -> list[Key]:
    """Return all keys, including revoked ones, ordered by id."""
    return [_key(row) for row in connection.execute(sa.select(*_columns()).order_by(KEYS.c.id))]


def active(connection: Connection) -> dict[bytes, Key]:
    """Return the keys that are neither revoked nor expired, by SHA-256."""
    statement = sa.select(KEYS.c.sha256, *_columns()).where(_is_active())
    return {sha256: _key(row) for sha256, *row in connection.execute(statement)}


def revoke(connection: Connection, key_id: int, *, actor: str = COMMAND) -> None:
    """Revoke a key; raises NotFound if it does not exist or is revoked."""
    statement = sa.update(KEYS).where(KEYS.c.id == key_id, KEYS.c.revoked_at.is_(None))
    if connection.execute(statement.values(revoked_at=sa.func.now())).rowcount == 0:
        raise NotFound(f"No key that is in use has the id {key_id}.")
    _record(connection, key_id, "revoked", actor)
    revision.lock(connection)
    revision.bump(connection, "keys")


def events(connection: Connection, *, most: int = 1000) -> list[Event]:
    """Return the latest `most` events, newest first."""
    latest = sa.select(*columns_of(EVENTS, Event)).order_by(EVENTS.c.id.desc()).limit(most)
    return records(connection, latest, Event)


def _record(connection: Connection, key_id: int, action: str, actor: str) -> None:
    connection.execute(sa.insert(EVENTS).values(key_id=key_id, action=action, actor=actor))


def _is_active() -> ColumnElement[bool]:
    return KEYS.c.revoked_at.is_(None) & (KEYS.c.expires_at.is_(None) | (KEYS.c.expires_at > sa.func.now()))


_STORED = [item.name for item in fields(Key) if item.name != "ends"]
_LEFT_S = sa.extract("epoch", KEYS.c.expires_at - sa.func.clock_timestamp())


def _columns() -> list[ColumnElement[Any]]:
    return [*(KEYS.c[name] for name in _STORED), _LEFT_S]


def _key(row: Sequence[Any]) -> Key:
    *stored, left_s = row
    values = dict(zip(_STORED, stored, strict=True))
    ends = math.inf if left_s is None else _running_s() + float(left_s)
    return Key(**values | {"role": Role[values["role"].upper()], "ends": ends})


_NOW = sa.text("SELECT extract(epoch FROM clock_timestamp())::float8")


def now_s(connection: Connection) -> float:
    """Return the seconds since 1970."""
    return float(connection.execute(_NOW).scalar_one())


_RATES = RATE_COUNTS.c
# Index of a window of time, and a caller's digest.
Slot = tuple[int, str]


class Requests(NamedTuple):
    """Number of requests, and of processes that got any."""

    number: int
    processes: int


NONE = Requests(0, 0)


def exchange(connection: Connection, process: str, counts: Mapping[Slot, int]) -> dict[Slot, Requests]:
    """Record a process's requests, and return those of all other processes since the first window of `counts`.

    Earlier windows are forgotten.
    """
    rows = [
        {"window": window, "caller": caller, "process": process, "requests": requests}
        for (window, caller), requests in sorted(counts.items())
    ]
    first = min(window for window, _ in counts)
    given = insert(RATE_COUNTS)
    connection.execute(
        given.on_conflict_do_update(index_elements=RATE_COUNTS.primary_key, set_={"requests": given.excluded.requests}),
        rows,
    )
    connection.execute(sa.delete(RATE_COUNTS).where(_RATES.window < first))
    others = sa.select(_RATES.window, _RATES.caller, sa.func.sum(_RATES.requests), sa.func.count())
    of_others = connection.execute(others.where(_RATES.process != process).group_by(_RATES.window, _RATES.caller))
    return {(window, caller): Requests(int(number), processes) for window, caller, number, processes in of_others}
