"""Connections to PostgreSQL, with recovery from lost connections."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from sqlalchemy import Connection, exc

from app.errors import Unavailable

CONNECT_TIMEOUT_S = 3
# A silently lost peer is detected after idle + interval x count seconds.
KEEPALIVE = {"keepalives": 1, "keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3}
POOL_SIZE = 5
POOL_OVERFLOW = 15


class Database:
    """A pool of connections to one PostgreSQL, which reconnects when the server returns."""

    def __init__(self, url: str) -> None:
        self.url = conninfo(url)
        self._engine = sa.create_engine(
            self.url.replace("postgresql://", "postgresql+psycopg://", 1),
            pool_pre_ping=True,
            pool_size=POOL_SIZE,
            max_overflow=POOL_OVERFLOW,
            pool_timeout=CONNECT_TIMEOUT_S,
            connect_args={"connect_timeout": CONNECT_TIMEOUT_S, **KEEPALIVE},
        )

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """Run a transaction: commits at the end, rolls back on an error; raises Unavailable on connection loss."""
        try:
            with self._engine.begin() as connection:
                yield connection
        except (exc.OperationalError, exc.InterfaceError, exc.TimeoutError) as error:
            raise Unavailable(f"The database does not answer: {_first_line(error)}") from error
        except exc.DBAPIError as error:
            if not error.connection_invalidated:
                raise
            raise Unavailable("The connection to the database was lost.") from error

    def ping(self) -> None:
        """Raise Unavailable unless the database answers."""
        with self.begin() as connection:
            connection.execute(sa.text("SELECT 1"))

    def wait(self, timeout_s: float) -> None:
        """Wait until the database answers; raises Unavailable after `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return self.ping()
            except Unavailable:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.2)

    def close(self) -> None:
        """Close the pooled connections."""
        self._engine.dispose()


def conninfo(url: str) -> str:
    """Return a PostgreSQL URL in the form that libpq, psycopg and Procrastinate accept."""
    scheme, separator, rest = url.partition("://")
    url = f"postgresql://{rest}"
    try:
        sa.make_url(url)
        readable = separator and scheme.split("+")[0] in ("postgres", "postgresql")
    except (exc.ArgumentError, ValueError):
        readable = False
    if not readable:
        raise ValueError("DATABASE_URL must look like postgresql://user:password@host:5432/name")
    return url


def _first_line(error: Exception) -> str:
    original = getattr(error, "orig", None) or error
    return str(original).strip().split("\n", 1)[0]
