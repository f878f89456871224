"""Connections to PostgreSQL, with time limits and recovery from lost connections."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import psycopg
import sqlalchemy as sa
from psycopg.errors import ConnectionTimeout, DiskFull
from sqlalchemy import Connection, exc

from app.errors import StorageFull, Unavailable
from app.runtime.group_commit import GroupCommit, Handle
from app.store.copying import driver_of
from app.store.impatient import Breaker, HungError, ImpatientConnection

T = TypeVar("T")
R = TypeVar("R")

POOL_SIZE = 5
POOL_OVERFLOW = 15
POOL_TIMEOUT_S = 1
SHOWN_FULL_S = 60.0
MOST_TOGETHER = 64  # uploads that are stored in one transaction
LOCK_SHARE = 0.8  # of a statement's limit: an error then says that a lock was waited for


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimits:
    """Limits on the database, seconds.

    connect_s         a new connection, whole seconds, at least 2
    answer_s          wait for an answer after which the server must show that it lives
    statement_s       one statement, a wait for a lock included
    long_statement_s  one statement of an import, a migration or a large listing
    """

    connect_s: int
    answer_s: float
    statement_s: float
    long_statement_s: float

    @classmethod
    def of_requests(cls, statement_s: float, long_statement_s: float) -> TimeLimits:
        """Return limits under which a request fails within 5 s of a hang, whatever it waits for in turn."""
        return cls(connect_s=2, answer_s=1.0, statement_s=statement_s, long_statement_s=long_statement_s)


# Of commands, workers and trainings, which wait until a pause of the server is over.
PATIENT = TimeLimits(connect_s=5, answer_s=30, statement_s=3600, long_statement_s=86_400)
_LOST = (psycopg.OperationalError, psycopg.InterfaceError)
_BEGIN, _BEGIN_ONE_STATE = b"BEGIN", b"BEGIN ISOLATION LEVEL REPEATABLE READ"


class Database:
    """A pool of connections to one PostgreSQL, which reconnects when the server returns."""

    def __init__(self, url: str, limits: TimeLimits = PATIENT) -> None:
        self.url = conninfo(url)
        self._limits = limits
        self._breaker = Breaker()
        self._writing: GroupCommit[Any, Any] = GroupCommit(MOST_TOGETHER)
        self._full_at: float | None = None
        self._engine = sa.create_engine(
            self.url.replace("postgresql://", "postgresql+psycopg://", 1),
            creator=partial(_connect, self.url, limits, self._breaker),
            pool_size=POOL_SIZE,
            max_overflow=POOL_OVERFLOW,
            pool_timeout=POOL_TIMEOUT_S,
        )

    @property
    def hangs(self) -> bool:
        """Whether a transaction would fail at once, because the server hung less than a second ago."""
        return self._breaker.is_open

    @property
    def is_full(self) -> bool:
        """Whether a change was refused within the last minute because the server's disk is full."""
        return self._full_at is not None and time.monotonic() - self._full_at < SHOWN_FULL_S

    @contextmanager
    def begin(self, *, long: bool = False, one_state: bool = False) -> Iterator[Connection]:
        """Run a transaction: commits at the end, rolls back on an error.

        `long` gives its statements the limit of imports; they too end within seconds if the server hangs. With
        `one_state` all of them read the database as it was at the first one. Raises Unavailable if the server is lost
        or too slow, and StorageFull.
        """
        self._breaker.check()
        first = _BEGIN_ONE_STATE if one_state else _BEGIN
        if long:
            first += b"; " + _set_limits(self._limits.long_statement_s, local=True)
        try:
            with self._connected(first) as connection:
                self._breaker.answered()
                with self._limited(connection, long=long), connection.begin():
                    yield connection
        except (*_LOST, exc.OperationalError, exc.InterfaceError, exc.TimeoutError) as error:
            raise self._failure(error) from error
        except exc.DBAPIError as error:
            if not error.connection_invalidated:
                raise
            raise Unavailable("The connection to the database was lost.") from error

    @contextmanager
    def _connected(self, first: bytes) -> Iterator[Connection]:
        """Give a connection on which `first` has begun a transaction.

        It also shows that the connection is alive: after a restart of the server, those in the pool are not.
        """
        with ExitStack() as held:
            connection = held.enter_context(self._engine.connect())
            try:
                _driver(connection).execute(first, prepare=False)
            except psycopg.OperationalError as error:
                if isinstance(error, HungError) or not _driver(connection).closed:
                    raise
                connection.invalidate(error)
                held.close()
                self._engine.dispose()  # of the idle ones
                connection = held.enter_context(self._engine.connect())
                _driver(connection).execute(first, prepare=False)
            yield connection

    def _failure(self, error: Exception) -> Unavailable:
        """Return the error to raise for one of the server, the connection or the pool."""
        original = getattr(error, "orig", error)
        if not isinstance(original, HungError | ConnectionTimeout | None):
            self._breaker.answered()  # a refused connection is an answer
        if isinstance(original, DiskFull):
            self._full_at = time.monotonic()
            return StorageFull(f"The disk of the database is full: {_first_line(error)}")
        return Unavailable(f"The database does not answer: {_first_line(error)}")

    @contextmanager
    def _limited(self, connection: Connection, *, long: bool) -> Iterator[None]:
        """Give the connection time for statements; before, it has only that for the answer to the first one."""
        driver = _driver(connection)
        # The server ends a statement itself first, unless this one connection is stuck.
        driver.limit_s = self._limits.answer_s + self._statement_s(long=long)
        try:
            yield
        finally:
            driver.limit_s = None

    def _statement_s(self, *, long: bool) -> float:
        return self._limits.long_statement_s if long else self._limits.statement_s

    def write_together(self, item: T, write: Handle[T, R]) -> R:
        """Return what `write` returns for an item; it is called for all that wait while it runs.

        They would wait for one another in the database, and take the processor from the one that it serves. Raises
        Unavailable after as long as for a lock.
        """
        try:
            result: R = self._writing.result(item, write, LOCK_SHARE * self._limits.long_statement_s)
        except TimeoutError as error:
            raise Unavailable("Other uploads are being stored.") from error
        return result

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


def _connect(url: str, limits: TimeLimits, breaker: Breaker) -> ImpatientConnection:
    connection = ImpatientConnection.open(url, limits.connect_s, limits.answer_s, breaker.hung)
    connection.execute(_set_limits(limits.statement_s))  # it commits by itself: transactions begin with a statement
    return connection


def _driver(connection: Connection) -> ImpatientConnection:
    driver = driver_of(connection)
    assert isinstance(driver, ImpatientConnection)
    return driver


def _set_limits(statement_s: float, *, local: bool = False) -> bytes:
    """Return the statements that limit statements, of the transaction if `local`, and a bit shorter waits for locks."""
    scope = "LOCAL" if local else "SESSION"
    limits = {"statement_timeout": statement_s, "lock_timeout": LOCK_SHARE * statement_s}
    return "; ".join(f"SET {scope} {name} = {seconds * 1e3:.0f}" for name, seconds in limits.items()).encode()


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
