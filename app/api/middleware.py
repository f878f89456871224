"""Around every HTTP request, as pure ASGI: its id, metrics, the limits on its time and body, a way past the router."""

from __future__ import annotations

import asyncio
import itertools
import re
import secrets
import time
from collections.abc import Awaitable, Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api import problems
from app.api.metrics import Metrics
from app.errors import GpucastError, TimedOut, TooLarge, UnsupportedMedia

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_MOST_TICK_S = 0.1
_COMPRESSED = "Bodies are read as they are: send no Content-Encoding (Parquet is compressed inside)."


class Observe:
    """Give every request an id (the caller's own, if it sent a sane one), count it and time it."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics
        self._process = secrets.token_hex(10).encode()
        self._number = itertools.count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and its answer back with X-Request-ID."""
        name = self._request_id(scope)
        started = time.perf_counter()
        status = 500

        def answered(message: Message) -> Awaitable[None]:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", name)]
            return send(message)

        try:
            await self._app(scope, receive, answered)
        finally:
            route = getattr(scope.get("route"), "path", "none")
            method = scope["method"] if route != "none" else "any"
            self._metrics.observe(method, route, status, time.perf_counter() - started)

    def _request_id(self, scope: Scope) -> bytes:
        """The caller's X-Request-ID, or a new one: this process's own digits, then a number."""
        for key, value in scope["headers"]:
            if key == b"x-request-id" and _REQUEST_ID.fullmatch(value):
                return bytes(value)
        return b"%s%012x" % (self._process, next(self._number))


class TimeLimit:
    """Answer 504 to a request that has no answer after so many seconds, and let its connection go on.

    What a thread works on cannot be stopped: it comes to its end, and nobody is told of it. One timer looks at all
    requests in turn, for one each costs as much as the rest of the way here: an answer may be a tick too late.
    """

    def __init__(self, app: ASGIApp, seconds: float) -> None:
        self._app = app
        self._seconds = seconds
        self._tick = min(seconds / 10.0, _MOST_TICK_S)
        self._open: dict[_Timed, float] = {}  # when each is late: as they came, so the first is the first to be
        self._loop: asyncio.AbstractEventLoop | None = None  # where the timer runs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on while the timer runs."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop = loop
            loop.call_later(self._tick, self._look)
        request = _Timed(scope, receive, send)
        self._open[request] = loop.time() + self._seconds
        try:
            await self._app(scope, receive, request.answered)
        finally:
            self._open.pop(request, None)
            if request.late is not None:
                await request.late

    def _look(self) -> None:
        """Answer those that are late; the timer stops where no request is left."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        late = list(itertools.takewhile(lambda request: self._open[request] <= now, self._open))
        for request in late:
            del self._open[request]
            request.expire(self._seconds)
        if self._open:
            loop.call_later(self._tick, self._look)
        else:
            self._loop = None


class _Timed:
    """A request under way: once it is late, its own answer goes nowhere."""

    __slots__ = ("_receive", "_scope", "_send", "answering", "late")

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self.answering = False
        self.late: asyncio.Task[None] | None = None

    def answered(self, message: Message) -> Awaitable[None]:
        """Send a part of its answer."""
        if self.late is not None:
            return asyncio.sleep(0)
        self.answering = True
        return self._send(message)

    def expire(self, seconds: float) -> None:
        """Answer in its place, unless its answer has begun."""
        if not self.answering:
            error = TimedOut(f"There was no answer within {seconds:g} s; ask for less at a time.")
            answer = problems.of_error(error)(self._scope, self._receive, self._send)
            self.late = asyncio.get_running_loop().create_task(answer)


class Headless:
    """Answer HEAD as GET, without the body: for probes that ask no more than whether a path is there."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; of the answer to HEAD, all but the body."""
        if scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def bare(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        await self._app({**scope, "method": "GET"}, receive, bare)


class BodyLimit:
    """Refuse bodies over a size, told by Content-Length or counted as chunks arrive, and compressed ones."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; one whose length is not told, with a `receive` that counts."""
        length = None
        for key, value in scope["headers"]:
            if key == b"content-length":
                length = value
            elif key == b"content-encoding" and value.lower() != b"identity":
                await problems.of_error(UnsupportedMedia(_COMPRESSED))(scope, receive, send)
                return
        if length is None:
            await self._counted(scope, receive, send)
        elif length.isdigit() and int(length) <= self._limit:
            await self._app(scope, receive, send)
        else:
            await self._refuse(scope, receive, send)

    async def _counted(self, scope: Scope, receive: Receive, send: Send) -> None:
        taken = 0
        started = refused = False

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self._limit:
                raise _Over
            return message

        async def answered(message: Message) -> None:
            """Whoever caught the exception and made another answer of it: 413 goes out."""
            nonlocal started, refused
            if taken > self._limit and not started:
                started = refused = True
                await self._refuse(scope, receive, send)
            elif not refused:
                started = True
                await send(message)

        try:
            await self._app(scope, counted, answered)
        except _Over:
            if not started:
                await self._refuse(scope, receive, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = TooLarge(f"The body is over {self._limit:,} bytes; send less, or in parts.")
        await problems.of_error(error)(scope, receive, send)


class _Over(Exception):
    """More body than allowed has arrived."""


class HotRoutes:
    """Answer POST to some paths at once, without the router and what FastAPI puts before it.

    The router has the same routes, for every other method and for a path behind a prefix.
    """

    def __init__(self, app: ASGIApp, routes: Mapping[str, ASGIApp]) -> None:
        self._app = app
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what is not hot; a defect is answered, and raised for the server to log."""
        hot = self._routes.get(scope["path"]) if scope["method"] == "POST" else None
        if hot is None:
            await self._app(scope, receive, send)
            return
        try:
            await hot(scope, receive, send)
        except GpucastError as error:
            await problems.of_error(error)(scope, receive, send)
        except Exception:
            await problems.of_defect()(scope, receive, send)
            raise
