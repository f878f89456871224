"""ASGI middleware in front of FastAPI: request id, metrics, a limit on time, a shortcut past the router."""

from __future__ import annotations

import asyncio
import itertools
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, TypeVar

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api import problems
from app.api.access import Access, RateLimit
from app.api.bodies import Bodies, BodyLimit, BodyLimits, WholeBody, cancel
from app.api.metrics import Metrics, traced
from app.api.work_queues import WorkQueues
from app.bootstrap.readiness import Part
from app.config import Settings
from app.errors import GpucastError, TimedOut, Unavailable
from app.runtime.cancellation import shared
from app.runtime.logs import REQUEST_ID
from app.runtime.sized_cache import StoredCache

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_MOST_TICK_S = 0.1


class Observe:
    """Give every request an id (the caller's own, if valid), count it and time it."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics
        self._process = secrets.token_hex(10).encode()
        self._number = itertools.count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and add X-Request-ID to its answer."""
        name = self.request_id(scope)
        REQUEST_ID.set(name)  # of this task, which ends with the request
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

    def request_id(self, scope: Scope) -> bytes:
        """Return the caller's X-Request-ID, or a new one: random digits of this process, then a number."""
        for key, value in scope["headers"]:
            if key == b"x-request-id" and _REQUEST_ID.fullmatch(value):
                return bytes(value)
        return b"%s%012x" % (self._process, next(self._number))


class TimeLimit:
    """Answer 504 to a request without an answer after so many seconds, and keep its connection.

    Its work is cancelled. One timer checks all requests, because a timer per request costs as much as the rest of this
    path: a 504 may come one tick late.
    """

    def __init__(self, app: ASGIApp, seconds: float) -> None:
        self._app = app
        self._seconds = seconds
        self._tick = min(seconds / 10.0, _MOST_TICK_S)
        self._open: dict[_Timed, float] = {}  # deadline of each request, in order of arrival
        self._loop: asyncio.AbstractEventLoop | None = None  # loop of the timer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on while the timer runs."""
        if self._loop is None or not self._loop.is_running():
            self._loop = asyncio.get_running_loop()  # a system call
            self._loop.call_later(self._tick, self._look)
        request = _Timed(scope, receive, send)
        self._open[request] = time.monotonic() + self._seconds
        try:
            await self._app(scope, receive, request.answered)
        except asyncio.CancelledError:  # the process stops, and has waited long enough
            cancel(scope)
            if request.answering:
                raise
            await problems.error_response(Unavailable("The service stops; send the request again."))(
                scope, receive, request.answered
            )
        finally:
            self._open.pop(request, None)
            if request.late is not None:
                await request.late

    def _look(self) -> None:
        """Answer late requests; stop the timer if no request is left."""
        loop, now = asyncio.get_running_loop(), time.monotonic()
        late = list(itertools.takewhile(lambda request: self._open[request] <= now, self._open))
        for request in late:
            del self._open[request]
            request.expire(self._seconds)
        if self._open:
            loop.call_later(self._tick, self._look)
        else:
            self._loop = None


class _Timed:
    """A request in progress. Once it is late, its own answer is dropped."""

    __slots__ = ("_receive", "_scope", "_send", "answering", "late")

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self.answering = False
        self.late: asyncio.Task[None] | None = None

    def answered(self, message: Message) -> Awaitable[None]:
        """Send a part of the answer."""
        if self.late is not None:
            return asyncio.sleep(0)
        self.answering = True
        return self._send(message)

    def expire(self, seconds: float) -> None:
        """Answer 504 and cancel the work, unless the answer has started."""
        if not self.answering:
            cancel(self._scope)
            error = TimedOut(f"There was no answer within {seconds:g} s; send a smaller request.")
            answer = problems.error_response(error)(self._scope, self._receive, self._send)
            self.late = asyncio.get_running_loop().create_task(answer)


class Headless:
    """Answer HEAD, which probes send, as GET without the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on as GET; drop the body of the answer."""

        async def bare(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        await self._app({**scope, "method": "GET"}, receive, bare)


class HotRoutes:
    """Answer POST to some paths directly, without the router and FastAPI's overhead.

    The router has the same routes, for other methods and for paths behind a prefix.
    """

    def __init__(self, app: ASGIApp, routes: Mapping[str, ASGIApp]) -> None:
        self._app = app
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on other routes. A defect is answered, and raised for the server to log."""
        hot = self._routes.get(scope["path"]) if scope["method"] == "POST" else None
        if hot is None:
            await self._app(scope, receive, send)
            return
        try:
            await hot(scope, receive, send)
        except GpucastError as error:
            await problems.error_response(error)(scope, receive, send)
        except Exception:
            await problems.defect_response()(scope, receive, send)
            raise


T = TypeVar("T")


class SharedCall(Generic[T]):
    """Calls a function in a thread, once for all callers that come before it returns: many cost as much as one."""

    def __init__(self) -> None:
        self._running: asyncio.Task[T] | None = None

    async def result(self, function: Callable[[], T]) -> T:
        """Return the result of the call in progress, or of a new one."""
        if self._running is None or self._running.done():
            self._running = asyncio.get_running_loop().create_task(run_in_threadpool(shared, function))
        return await asyncio.shield(self._running)


# Bytes of saved predictions that gateways ask about.
MOST_SAVED_BYTES = 16 * 2**20


class Service(FastAPI):
    """HEAD, request id and metrics, then time limit, keys and rates, body limits, hot routes, FastAPI."""

    def __init__(self, settings: Settings, *, hot: Mapping[str, ASGIApp], **about: Any) -> None:
        super().__init__(**about)
        self.metrics = Metrics()
        self.readiness: SharedCall[tuple[Part, ...]] = SharedCall()
        self.saved: StoredCache[tuple[str, str]] = StoredCache(MOST_SAVED_BYTES)  # route and request
        self.bodies, self.queues = Bodies(), WorkQueues(settings.max_waiting)
        self.limits = BodyLimits.from_settings(settings)
        whole = WholeBody(super().__call__, self.bodies, self.queues)
        front: ASGIApp = BodyLimit(HotRoutes(whole, hot), self.limits)
        self.rate = RateLimit(settings.rate) if settings.rate is not None else None
        self.access: Access | None = None
        if settings.needs_keys or self.rate is not None:
            front = self.access = Access(front, settings, self.rate)
        front = TimeLimit(front, settings.request_timeout_s)
        if settings.traces is not None:
            front = traced(front, settings.traces)
        self.observe = Observe(front, self.metrics)
        self._headless = Headless(self.observe)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """HTTP goes through the middleware; the lifespan does not."""
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        scope["app"] = self
        await (self._headless if scope["method"] == "HEAD" else self.observe)(scope, receive, send)
