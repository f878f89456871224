"""One number that grows with every change a running API process must see."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import Connection

from app.store.rows import REVISION


def lock(connection: Connection) -> None:
    """Be the only one to change anything that is counted here, until the transaction ends.

    Whoever changes several rows takes this first, and nothing that it then waits for is held by one who waits for it:
    otherwise two uploads of the same rows, or of GPUs that both bring along, could wait for each other.
    """
    connection.execute(sa.select(REVISION.c.value).with_for_update())


def bump(connection: Connection) -> int:
    """Grow the revision in the transaction of the change itself; returns the new value."""
    statement = sa.update(REVISION).values(value=REVISION.c.value + 1).returning(REVISION.c.value)
    return int(connection.execute(statement).scalar_one())


def current(connection: Connection) -> int:
    """The revision as committed."""
    return int(connection.execute(sa.select(REVISION.c.value)).scalar_one())
