"""Which shipped files of measurements have been brought in, by the hash of what they hold."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import Connection

from app.store.rows import SEED_FILES

LOCK = 0x73656564  # "seed": of processes that start at once, one brings in and the others wait


def lock(connection: Connection) -> None:
    """Be the only one to bring in files until the transaction ends."""
    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(LOCK)))


def known(connection: Connection) -> set[str]:
    """SHA-256 of every file that was brought in."""
    return set(connection.execute(sa.select(SEED_FILES.c.sha256)).scalars())


def add(connection: Connection, sha256: str, name: str) -> None:
    """Remember a file."""
    connection.execute(sa.insert(SEED_FILES).values(sha256=sha256, name=name))
