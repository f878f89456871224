"""The database's clock, which all replicas share: their own may be wrong."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import Connection

_NOW = sa.text("SELECT extract(epoch FROM clock_timestamp())::float8")


def now_s(connection: Connection) -> float:
    """Return the seconds since 1970."""
    return float(connection.execute(_NOW).scalar_one())
