"""One number that grows with every change a running API process must see."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import Connection

from app.store.rows import REVISION


def bump(connection: Connection) -> int:
    """Grow the revision in the transaction of the change itself; returns the new value."""
    statement = sa.update(REVISION).values(value=REVISION.c.value + 1).returning(REVISION.c.value)
    return int(connection.execute(statement).scalar_one())


def current(connection: Connection) -> int:
    """The revision as committed."""
    return int(connection.execute(sa.select(REVISION.c.value)).scalar_one())
