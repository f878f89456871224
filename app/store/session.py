"""Connections to PostgreSQL, with time limits and recovery from lost connections.

A psycopg connection gives up on a server that hangs, and a circuit breaker is over all connections to it.

libpq waits for ever for an answer. TCP's own timeouts do not help: the kernel of a host whose server is stopped still
acknowledges packets. So a wait is cut into slices, after each of which a new connection shows whether the server lives:
a long statement goes on, a hung one ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, TypeVar

import psycopg
import sqlalchemy as sa
from psycopg.conninfo import make_conninfo
from psycopg.errors import ConnectionTimeout, DiskFull, QueryCanceled
from sqlalchemy import Connection, exc

from app.errors import Cancelled, StorageFull, Unavailable
from app.runtime.cancellation import is_cancelled
from app.runtime.group_commit import GroupCommit, Handle
from app.store.driver import driver_of

T = TypeVar("T")
Steps = Generator[Any, Any, T]  # of psycopg: yields what to wait for; is sent what is ready, 0 if nothing yet

LIVENESS_TIMEOUT_S = 2  # the least that libpq knows
# A silently lost peer is detected after idle + interval x count seconds, or by unacknowledged data.
KEEPALIVE = {
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 5000,  # milliseconds
}
BREAK_S = 1.0


class HungError(psycopg.OperationalError):
    """The server did not answer in time."""


class Breaker:
    """After a hang, lets one attempt a second through and fails the others at once, so that they hold no threads.

    A circuit breaker (Nygard 2007).
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open_until: float | None = None

    def check(self) -> None:
        """Raise Unavailable within `BREAK_S` seconds of a hang, or while another attempt runs."""
        with self._lock:
            if self._open_until is None:
                return
            now = time.monotonic()
            if now < self._open_until:
                raise Unavailable("The database hangs; it is asked again every second.")
            # For the longest time that the attempt may take; its end opens or closes the breaker.
            self._open_until = now + 2 * LIVENESS_TIMEOUT_S

    @property
    def is_open(self) -> bool:
        """Whether an attempt would fail at once."""
        until = self._open_until
        return until is not None and time.monotonic() < until

    def hung(self) -> None:
        """Record a hang."""
        with self._lock:
            self._open_until = time.monotonic() + BREAK_S

    def answered(self) -> None:
        """Record an answer of the server."""
        if self._open_until is not None:
            with self._lock:
                self._open_until = None


class ImpatientConnection(psycopg.Connection[Any]):
    """A connection that raises HungError, and is closed, when the server hangs.

    `idle_for_s` is the wait after which the server's liveness is checked. A wait over `limit_s` ends in any case; None:
    at the first check.
    """

    idle_for_s = float(LIVENESS_TIMEOUT_S)
    limit_s: float | None = None
    _url: str
    _on_hang: Callable[[], None]

    @classmethod
    def open(cls, url: str, connect_s: int, idle_for_s: float, on_hang: Callable[[], None]) -> Self:
        """Connect within `connect_s` seconds; `on_hang` is called where the server hangs, now or later."""
        try:
            connection = cls.connect(make_conninfo(url, connect_timeout=connect_s, **KEEPALIVE), autocommit=True)
        except psycopg.errors.ConnectionTimeout:
            on_hang()
            raise
        connection.idle_for_s, connection._url, connection._on_hang = idle_for_s, url, on_hang
        return connection

    def wait(self, gen: Steps[T], interval: float = 0.1, timeout: float | None = None) -> T:
        """Run a step of the protocol to its end. Raises HungError, or Cancelled if nobody waits for it any more."""
        return super().wait(self._watched(gen), interval, timeout)

    def _watched(self, steps: Steps[T]) -> Steps[T]:
        left = False
        try:
            state = next(steps)
            started = time.monotonic()
            check_at = started + self.idle_for_s
            while True:
                ready = yield state
                if not ready and not left and is_cancelled():
                    left = True
                    with suppress(psycopg.Error):  # the server goes on for whoever has gone, unless it learns of it
                        self.cancel_safe(timeout=LIVENESS_TIMEOUT_S)
                if not ready and time.monotonic() > check_at:
                    self._check(time.monotonic() - started)
                    check_at = time.monotonic() + self.idle_for_s
                state = steps.send(ready)
        except StopIteration as done:
            result: T = done.value
            return result
        except QueryCanceled:
            if left:
                raise Cancelled from None
            raise

    def _check(self, waited_s: float) -> None:
        """Raise HungError, and close this connection, unless the server lives and time is left."""
        if self.limit_s is not None and waited_s < self.limit_s and is_alive(self._url):
            return
        self._on_hang()
        self.pgconn.finish()
        raise HungError(f"no answer within {waited_s:.1f} s")


def is_alive(url: str) -> bool:
    """Return False if a new connection gets no answer within `LIVENESS_TIMEOUT_S` seconds; a refusal is an answer."""
    # PQping would hold Python's global lock meanwhile.
    try:
        psycopg.connect(make_conninfo(url, connect_timeout=LIVENESS_TIMEOUT_S)).close()
    except psycopg.errors.ConnectionTimeout:
        return False
    except psycopg.OperationalError:
        return True
    return True


R = TypeVar("R")

POOL_SIZE = 5
POOL_OVERFLOW = 15
POOL_TIMEOUT_S = 1
SHOWN_S = 60.0  # how long a refused change is shown
# Classes of SQLSTATE that tell of a server in trouble, not of a wrong statement: a transaction that was rolled back for
# others, too few resources, an operator's intervention (a shutdown too), an error of the system, a lost connection, an
# internal error; and the read-only transactions of a standby, as after a failover.
IN_TROUBLE = ("40", "53", "57", "58", "08", "XX", "25006", "25P02", "25P03")
_READ_ONLY = "25006"
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


def _is_recent(moment: float | None) -> bool:
    """Return whether a moment of the monotonic clock was less than SHOWN_S ago."""
    return moment is not None and time.monotonic() - moment < SHOWN_S


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
        self._read_only_at: float | None = None
        self._engine = sa.create_engine(
            self.url.replace("postgresql://", "postgresql+psycopg://", 1),
            creator=partial(_connect, self.url, limits, self._breaker),
            pool_size=POOL_SIZE,
            max_overflow=POOL_OVERFLOW,
            pool_timeout=POOL_TIMEOUT_S,
            hide_parameters=True,  # tokens of saved answers and callers' rows stay out of logs
        )

    @property
    def hangs(self) -> bool:
        """Whether a transaction would fail at once, because the server hung less than a second ago."""
        return self._breaker.is_open

    @property
    def is_full(self) -> bool:
        """Whether a change was refused within the last minute because the server's disk is full."""
        return _is_recent(self._full_at)

    @property
    def is_read_only(self) -> bool:
        """Whether a change was refused within the last minute because the server is read-only."""
        return _is_recent(self._read_only_at)

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
        except (exc.DBAPIError, psycopg.Error) as error:  # what app.store.driver executes is not wrapped
            if getattr(error, "connection_invalidated", False):
                raise Unavailable("The connection to the database was lost.") from error
            if not (getattr(getattr(error, "orig", error), "sqlstate", None) or "").startswith(IN_TROUBLE):
                raise
            raise self._failure(error) from error

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
        if getattr(original, "sqlstate", None) == _READ_ONLY:
            self._read_only_at = time.monotonic()
            return Unavailable(f"The database is read-only, as after a failover: {_first_line(error)}")
        return Unavailable(f"The database does not answer: {_first_line(error)}")

    @contextmanager
    def _limited(self, connection: Connection, *, long: bool) -> Iterator[None]:
        """Give the connection time for statements; before, it has only that for the answer to the first one."""
        driver = _driver(connection)
        # The server ends a statement itself first, unless this one connection is stuck.
        statement_s = self._limits.long_statement_s if long else self._limits.statement_s
        driver.limit_s = self._limits.answer_s + statement_s
        try:
            yield
        finally:
            driver.limit_s = None

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
