"""Receive whole bodies, and notice callers that leave: nobody waits for their answers, so their work is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api import problems
from app.errors import Cancelled, GpucastError
from app.runtime.cancellation import Cancellation, current_work

T = TypeVar("T")


async def whole_body(receive: Receive) -> bytes:
    """Return the whole request body. Raises Cancelled if the caller leaves before its end."""
    message = await receive()
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False) and message["type"] == "http.request":
        return body
    parts = [body]
    while message.get("more_body", False):
        message = await receive()
        parts.append(message.get("body", b""))
    if message["type"] == "http.disconnect":
        raise Cancelled
    return b"".join(parts)


async def in_thread(receive: Receive, work: Callable[[], T]) -> T:
    """Return the result of work in a thread, which is cancelled if the caller leaves. The body was received."""
    async with _watched(receive):
        return await run_in_threadpool(work)


class WholeBody:
    """Receive the whole body before the application runs, and cancel its work if the caller leaves."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its body in one part, or answer why it has no whole body."""
        try:
            body = await whole_body(receive)
        except GpucastError as error:
            await problems.error_response(error)(scope, receive, send)
            return
        parts = [{"type": "http.request", "body": body, "more_body": False}]
        del body
        async with _watched(receive) as left:

            async def replayed() -> Message:
                if not parts:
                    await left.wait()
                    return {"type": "http.disconnect"}
                return parts.pop()

            await self._app(scope, replayed, send)


@asynccontextmanager
async def _watched(receive: Receive) -> AsyncIterator[asyncio.Event]:
    """Cancel the current work if the caller leaves meanwhile; the event says so."""
    left = asyncio.Event()
    watching = asyncio.get_running_loop().create_task(_watch(receive, current_work(), left))
    try:
        yield left
    finally:
        watching.cancel()


async def _watch(receive: Receive, work: Cancellation | None, left: asyncio.Event) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    if work is not None:
        work.cancelled = True
    left.set()
