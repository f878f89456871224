"""FastAPI behind our own middleware, so that the hot route avoids FastAPI's overhead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.access import Access, RateLimit
from app.api.bodies import Bodies, BodyLimit, BodyLimits, WholeBody
from app.api.metrics import Metrics, traced
from app.api.middleware import Headless, HotRoutes, Observe, TimeLimit
from app.api.work_queues import WorkQueues
from app.bootstrap.readiness import Part
from app.config import Settings
from app.runtime.sized_cache import SizedCache

T = TypeVar("T")


class SharedCall(Generic[T]):
    """Calls a function in a thread, once for all callers that come before it returns: many cost as much as one."""

    def __init__(self) -> None:
        self._running: asyncio.Task[T] | None = None

    async def result(self, function: Callable[[], T]) -> T:
        """Return the result of the call in progress, or of a new one."""
        if self._running is None or self._running.done():
            self._running = asyncio.get_running_loop().create_task(run_in_threadpool(function))
        return await asyncio.shield(self._running)


# Bytes of saved predictions that gateways ask about.
MOST_SAVED_BYTES = 16 * 2**20


class Service(FastAPI):
    """HEAD, request id and metrics, then time limit, keys and rates, body limits, hot routes, FastAPI."""

    def __init__(self, settings: Settings, *, hot: Mapping[str, ASGIApp], **about: Any) -> None:
        super().__init__(**about)
        self.metrics = Metrics()
        self.readiness: SharedCall[tuple[Part, ...]] = SharedCall()
        self.saved: SizedCache[tuple[str, str]] = SizedCache(MOST_SAVED_BYTES)  # route and request, by id
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
