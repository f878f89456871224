"""uvicorn's HTTP protocol with limits: connections, bytes of headers, and time to receive requests and take answers.

httptools has none of these. A request that arrives in one piece, as most do, is not timed. Kernels are answered
directly (app.api.direct), and their heads parsed once (app.api.direct); other requests are answered by tasks.
"""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from app.api import problems
from app.api.connections import Connections, address_of
from app.api.direct import DIRECT, Direct, Known
from app.api.usual_answer import JoinedWrites, UsualAnswer
from app.api.work_queues import is_probe
from app.coefficients import Coefficients
from app.config import Settings
from app.errors import GpucastError, HeadersTooLarge, Malformed, TooSlow

_SERVICE = Coefficients("service")
# Largest head of a request: its line and its headers. No proxy passes on half as much.
MAX_HEADER_BYTES = 65_536
# A longer body gets more time. A slower caller keeps a connection and memory on purpose.
_BODY_BYTES_PER_S = 16_384
# Longest time in which a caller takes nothing of an answer that waits for it.
_ANSWER_S = 30.0
_TICK_S = 0.5
# Time to read a refusal of a connection before it is closed: closing at once may discard it.
_REFUSED_S = 0.2
# Time in which a connection over a limit sends its request, a probe's.
_RESERVED_S = _SERVICE.number("probe_s")
# Time in which a connection without a request may still send one, and get its answer, when the process stops.
_LAST_S = _SERVICE.number("last_request_s")
STOPS = "stops"  # of the state that the server hands to its connections: it accepts no more of them


class _Trailers(list[tuple[bytes, bytes]]):
    """Drop headers after a body (trailers), because no route reads them."""

    def append(self, item: tuple[bytes, bytes]) -> None:
        """Drop it."""


_TRAILERS = _Trailers()


class BoundedHttp(HttpToolsProtocol):
    """One connection. uvicorn makes it, by name, so it reads the settings of the environment."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._settings = _settings()
        self.timeout_keep_alive = self._settings.keep_alive_s  # type: ignore[assignment]  # fractions work
        self._begun = self._in_body = self._refused = False  # a request has begun; its headers were received
        self._direct: Direct | None = None if self.limit_concurrency else self.app_state.get(DIRECT)
        self._over: GpucastError | None = None  # why only a probe is answered
        self._is_last = False  # the connection ends with the next answer
        self._direct_waits = False  # for the body of a request
        self._new_scope: Scope | None = None  # of a whole request that may be answered directly, as it was parsed
        self._shared = False  # requests ended in this piece, so it is not all of the next one's
        self._piece = self._received = 0  # bytes of this piece, and of earlier pieces of the request
        self._unsent = 0  # bytes of the answer that waited when last looked at
        self._timer: asyncio.TimerHandle | None = None
        self._since = 0.0  # when the request, or the wait for it, began
        self._idle_since: float | None = None  # when the last answer ended; None while there is a request

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request; if there are too many connections, for that of a probe."""
        super().connection_made(JoinedWrites(transport))  # type: ignore[arg-type]  # all of it that uvicorn calls
        self._address = address_of(self.client)
        self._over = _connections().admit(self, self._address, self.transport.abort)
        if self._over is not None or STOPS in self.app_state:
            self._end_with_next()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers."""
        self._unwatch()
        _connections().end(self, self._address)
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Close the connection after the answer in progress, or after that to a request which is under way."""
        self.app_state[STOPS] = True
        if self.cycle is not None and not self.cycle.response_complete:
            super().shutdown()
        self._end_with_next()

    def _end_with_next(self) -> None:
        self._is_last, self._direct = True, None
        if self._over is None:
            self.loop.call_later(_LAST_S, self._close_unless_used)

    def _close_unless_used(self) -> None:
        if not self._begun and (self.cycle is None or self.cycle.response_complete):
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        """Read a piece of a request; time the request if it is not whole."""
        if self._refused:
            return
        starts = not self._begun
        if starts and (known := self._known(data)) is not None:
            self._answer_known(known)
            return
        self._piece, self._shared = len(data), False
        super().data_received(data)
        if self._new_scope is not None and self._direct is not None:
            if starts:
                self._direct.heads.learn(data, self._new_scope, self.cycle.body)
            self._new_scope = None
        if self._direct_waits:  # for the rest of its body
            self._direct_waits = False
            super()._start_asgi_task(self.cycle, self.app)
        if self._begun or self._timer is not None:
            self._check()

    def _known(self, data: bytes) -> Known | None:
        """Return the request in a piece that needs no parser: it is whole, nothing is timed, and no other waits."""
        if self._direct is None or self._timer is not None or self.cycle is None or not self.cycle.response_complete:
            return None
        return self._direct.heads.find(data)

    def _answer_known(self, known: Known) -> None:
        """Answer a whole request as the parser's callbacks would."""
        self._idle_since = None
        own = {"server": self.server, "client": self.client, "scheme": self.scheme, "state": self.app_state.copy()}
        cycle = self.cycle = UsualAnswer(
            {**known.scope, **own},  # type: ignore[typeddict-item]
            self.transport,
            self.flow,
            self.logger,
            self.access_logger,
            self.access_log,
            self.server_state.default_headers,
            asyncio.Event(),
            expect_100_continue=False,
            keep_alive=True,
            on_response=self.on_response_complete,
        )
        cycle.body, cycle.more_body = known.body, False  # type: ignore[assignment]  # only read
        cycle.message_event.set()
        self._answer_directly(cycle)

    def _check(self) -> None:
        """Start, continue or stop to time the request, and refuse one whose headers are too large."""
        self._received += self._head_bytes() if self._shared and not self._in_body else self._piece
        if self._refused or not self._begun:
            self._unwatch()
        elif not self._in_body and self._received > MAX_HEADER_BYTES:
            self._refuse(HeadersTooLarge(MAX_HEADER_BYTES))
        elif self._timer is None:
            self._watch()

    def on_message_begin(self) -> None:
        """Note that a request begins."""
        self._begun, self._in_body, self._received = True, False, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Start the request, unless its head is too large."""
        if self._received + self._piece > MAX_HEADER_BYTES and self._head_bytes() > MAX_HEADER_BYTES:
            raise HeadersTooLarge(MAX_HEADER_BYTES)
        self._in_body = True
        super().on_headers_complete()
        self.cycle.__class__ = UsualAnswer  # uvicorn makes it, of its own class; its task has not begun
        self.headers = _TRAILERS

    def _head_bytes(self) -> int:
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    def on_message_complete(self) -> None:
        """Note that the request is whole."""
        self._begun, self._shared = False, True
        super().on_message_complete()
        if self._direct_waits:
            self._direct_waits = False
            if self.cycle.keep_alive and not self.cycle.waiting_for_100_continue:
                self._new_scope = self.cycle.scope.copy()  # type: ignore[assignment]  # before anybody adds to it
            self._answer_directly(self.cycle)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        """Start the task of a request, unless it is answered directly once its body was received, or refused."""
        if self._is_last:
            cycle.keep_alive = False
            if self._over is not None and not is_probe(cycle.scope):
                self._refuse(self._over)
                return
        if self._direct is None or app is not self.app or not self._direct.takes(cycle.scope):
            super()._start_asgi_task(cycle, app)
        elif cycle.more_body:
            self._direct_waits = True
        else:
            self._answer_directly(cycle)

    def _answer_directly(self, cycle: Any) -> None:
        start: Any = super()._start_asgi_task
        assert self._direct is not None
        self._direct.answer(cycle, lambda app: start(cycle, app or self.app))

    def on_response_complete(self) -> None:
        """Go on with the next request, or wait for one. uvicorn does the same with a timer per answer."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
            return
        self._idle_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._close_if_idle_in(self.timeout_keep_alive)

    def _unset_keepalive_if_required(self) -> None:
        self._idle_since = None

    def _close_if_idle_in(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection if it was idle for so long; otherwise look again."""
        self.timeout_keep_alive_task = None
        if self._idle_since is None:  # the end of the request starts the timer again
            return
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._close_if_idle_in(left)
        else:
            super().timeout_keep_alive_handler()

    def send_400_response(self, msg: str) -> None:
        """Answer what the parser could not read, or what was raised in one of its callbacks."""
        too_large = not self._in_body and self._received + self._piece > MAX_HEADER_BYTES
        self._refuse(HeadersTooLarge(MAX_HEADER_BYTES) if too_large else Malformed(msg))

    def pause_writing(self) -> None:
        """Wait for the caller to take its answer."""
        super().pause_writing()
        self._unsent = self.transport.get_write_buffer_size()
        self._watch()

    def resume_writing(self) -> None:
        """Go on: the caller has taken most of its answer."""
        self._unwatch()
        super().resume_writing()

    def _watch(self) -> None:
        if self._timer is None:
            self._since = self.loop.time()
            self._timer = self.loop.call_later(_TICK_S, self._look)

    def _unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        """End the connection if it is too slow; otherwise look again."""
        self._timer = self.loop.call_later(_TICK_S, self._look)
        if self.flow.write_paused:
            unsent = self.transport.get_write_buffer_size()
            if unsent < self._unsent:
                self._unsent, self._since = unsent, self.loop.time()
            elif self.loop.time() > self._since + _ANSWER_S:
                self.transport.abort()
        elif self.loop.time() > self._since + self._allowed_s() and not self.flow.read_paused:
            self._expire()

    def _allowed_s(self) -> float:
        if self._over is not None:
            return _RESERVED_S
        if self._in_body:
            return self._settings.body_timeout_s + self._received / _BODY_BYTES_PER_S
        return self._settings.header_timeout_s

    def _expire(self) -> None:
        """Answer 408 to a part of a request, unless it has an answer, and close the connection."""
        if self._over is not None and not (self._in_body and self.cycle.response_started):
            self._refuse(self._over)
        elif self._begun and not (self._in_body and self.cycle.response_started):
            what = "body" if self._in_body else "headers"
            self._refuse(TooSlow(f"The {what} did not arrive within {self._allowed_s():.0f} s; send them faster."))
        else:
            self.transport.close()

    def _refuse(self, error: GpucastError) -> None:
        """Answer with an error, and close the connection; what it sends is not read any more."""
        self._refused = True
        self._unwatch()
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # the application's answer is dropped
            self.cycle.message_event.set()
        response = problems.error_response(error)
        headers = [*response.raw_headers, (b"connection", b"close")]
        lines = [name + b": " + value + b"\r\n" for name, value in headers]
        self.transport.write(b"".join([STATUS_LINE[response.status_code], *lines, b"\r\n", bytes(response.body)]))
        self.loop.call_later(_REFUSED_S, self.transport.close)


@cache
def _settings() -> Settings:
    return Settings.from_env()


@cache
def _connections() -> Connections:
    return Connections(_settings().max_connections, _settings().max_connections_per_address)
