"""Around every request, as pure ASGI: its id, its metrics, and the limit on its body."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import MutableMapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api import problems
from app.errors import TooLarge

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Metrics:
    """What /metrics shows of this process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ("method", "route", "status")
        self.requests = Counter("gpucast_requests", "Requests answered", labels, registry=self.registry)
        self.seconds = Histogram(
            "gpucast_request_seconds", "Time to answer", ("route",), buckets=_SECONDS, registry=self.registry
        )
        self.revision = Gauge("gpucast_engine_revision", "Revision of the engine that serves", registry=self.registry)
        self.database_up = Gauge("gpucast_database_up", "1 while the database answers", registry=self.registry)
        self._counters: dict[tuple[str, str, int], Counter] = {}
        self._timers: dict[str, Histogram] = {}

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one request; `route` is a template, so that ids do not become labels."""
        key = (method, route, status)
        counter = self._counters.get(key)
        if counter is None:
            counter = self._counters[key] = self.requests.labels(method, route, str(status))
            self._timers.setdefault(route, self.seconds.labels(route))
        counter.inc()
        self._timers[route].observe(seconds)


class Observe:
    """Give every request an id (the caller's own, if it sent a sane one), count it and time it."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and its answer back with X-Request-ID."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        name = request_id(scope)
        started = time.perf_counter()
        status = 500

        async def answered(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", name)]
            await send(message)

        try:
            await self._app(scope, receive, answered)
        finally:
            route = getattr(scope.get("route"), "path", "none")
            method = scope["method"] if route != "none" else "any"
            self._metrics.observe(method, route, status, time.perf_counter() - started)


def request_id(scope: MutableMapping[str, Any]) -> bytes:
    """The caller's X-Request-ID, or a new one."""
    for key, value in scope["headers"]:
        if key == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return bytes(value)
    return uuid.uuid4().hex.encode()


class BodyLimit:
    """Refuse bodies over a size with 413, told by Content-Length or counted as chunks arrive."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; one whose length is not told, with a `receive` that counts."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        for key, value in scope["headers"]:
            if key == b"content-length":
                if value.isdigit() and int(value) <= self._limit:
                    await self._app(scope, receive, send)
                else:
                    await self._refuse(scope, receive, send)
                return
        await self._counted(scope, receive, send)

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


class _Over(Exception):  # noqa: N818 - no error of ours to show, only a way out of the application
    """More body than allowed has arrived."""
