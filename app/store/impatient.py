"""A psycopg connection that gives up on a server that hangs, and a circuit breaker over all connections to it.

libpq waits for ever for an answer. TCP's own timeouts do not help: the kernel of a host whose server is stopped still
acknowledges packets. So a wait is cut into slices, after each of which a new connection shows whether the server lives:
a long statement goes on, a hung one ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from typing import Any, Self, TypeVar

import psycopg
from psycopg.conninfo import make_conninfo

from app.errors import Unavailable

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
        """Run a step of the protocol to its end. Raises HungError."""
        return super().wait(self._watched(gen), interval, timeout)

    def _watched(self, steps: Steps[T]) -> Steps[T]:
        try:
            state = next(steps)
            started = time.monotonic()
            check_at = started + self.idle_for_s
            while True:
                ready = yield state
                if not ready and time.monotonic() > check_at:
                    self._check(time.monotonic() - started)
                    check_at = time.monotonic() + self.idle_for_s
                state = steps.send(ready)
        except StopIteration as done:
            result: T = done.value
            return result

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
