"""Revision number: incremented by every change that running API processes must notice."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import Connection

from app.store.sql_tables import REVISION


def lock(connection: Connection) -> None:
    """Take the exclusive lock for changes, until the transaction ends.

    A writer of several rows takes it first and waits for nothing that another holder waits for. Otherwise two uploads
    of the same rows, or of the same new GPUs, could deadlock.
    """
    connection.execute(sa.select(REVISION.c.value).with_for_update())


def bump(connection: Connection) -> int:
    """Increment the revision in the change's own transaction, and return the new value."""
    statement = sa.update(REVISION).values(value=REVISION.c.value + 1).returning(REVISION.c.value)
    return int(connection.execute(statement).scalar_one())


def current(connection: Connection) -> int:
    """Return the committed revision."""
    return int(connection.execute(sa.select(REVISION.c.value)).scalar_one())
