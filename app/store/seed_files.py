"""Record of imported shipped measurement files, by content hash."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import Connection

from app.store.sql_tables import SEED_FILES

LOCK = 0x73656564  # "seed": serialises the import at start


def lock(connection: Connection) -> None:
    """Take the exclusive import lock until the transaction ends."""
    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(LOCK)))


def known(connection: Connection) -> set[str]:
    """Return the SHA-256 of every imported file."""
    return set(connection.execute(sa.select(SEED_FILES.c.sha256)).scalars())


def add(connection: Connection, sha256: str, name: str) -> None:
    """Record an imported file."""
    connection.execute(sa.insert(SEED_FILES).values(sha256=sha256, name=name))
