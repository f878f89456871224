"""Receive whole bodies within limits; work for callers that leave is cancelled."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple, Self, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api import problems
from app.api.access import name_of
from app.api.work_queues import WorkQueue, WorkQueues
from app.config import Settings
from app.errors import Cancelled, GpucastError, TooLarge, TooMany, Unavailable, UnsupportedMedia
from app.runtime.cancellation import Cancellation

_COMPRESSED = "Bodies are read as they are: send no Content-Encoding (Parquet is compressed inside)."
# Routes that take many rows or a whole graph, and those that take a few fields, which are read on the event loop.
_UPLOADS = frozenset(("/predict/batch", "/measurements", "/graphs", "/prices"))
_FORMS = ("/retrain", "/keys", "/sign-in", "/sign-out")
_FORM_BYTES = 65_536
_WITHOUT_WEIGHTS = (
    "weights are not read: keep them in a file of their own (torch.onnx.export(..., external_data=True), or"
    " onnx.save(model, path, save_as_external_data=True)) and send the .onnx file alone. `gpucast predict FILE` takes a"
    " file of any size beside the service."
)


class BodyLimits(NamedTuple):
    """Largest bodies, bytes: of uploads, of forms, and of other requests."""

    upload: int
    form: int
    request: int

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Return the limits of an installation; `max_body_bytes` is over all."""
        most = settings.max_body_bytes
        return cls(most, min(_FORM_BYTES, most), min(settings.max_request_bytes, most))

    def of(self, path: str) -> int:
        """Return the limit of a route."""
        if path in _UPLOADS:
            return self.upload
        return self.form if path.startswith(_FORMS) else self.request


class BodyLimit:
    """Refuse compressed bodies, and bodies over their route's limit, by Content-Length or by counting chunks."""

    def __init__(self, app: ASGIApp, limits: BodyLimits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; what reads its body gets TooLarge if the length is not given and too large."""
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        length, most = None, self._limits.of(path)
        for key, value in scope["headers"]:
            if key == b"content-length":
                length = value
            elif key == b"content-encoding" and value.lower() != b"identity":
                await problems.error_response(UnsupportedMedia(_COMPRESSED))(scope, receive, send)
                return
        if length is None:
            await self._app(scope, _counted(receive, most, path), send)
        elif length.isdigit() and int(length) <= most:
            await self._app(scope, receive, send)
        else:
            await problems.error_response(_too_large(most, path))(scope, receive, send)


def _counted(receive: Receive, most: int, path: str) -> Receive:
    """Return a `receive` that raises TooLarge once the parts exceed the limit."""
    taken = 0

    async def counted() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > most:
            raise _too_large(most, path)
        return message

    return counted


def _too_large(most: int, path: str) -> TooLarge:
    instead = _WITHOUT_WEIGHTS if path == "/graphs" else "send less, or in parts."
    return TooLarge(f"The body is over {most:,} bytes; {instead}")


T = TypeVar("T")

_WORK = "gpucast_work"  # of the scope: the Cancellation of what runs in a thread

# Most bytes of bodies that are held at a time: four of the largest, and two of one caller. Those that arrive in one
# piece are not counted.
MAX_HELD_BYTES, MAX_OF_CALLER = 256 * 2**20, 128 * 2**20
_RETRY_S = 2


class Bodies:
    """Bytes of bodies of requests in progress, limited together."""

    def __init__(self) -> None:
        self._held = 0
        self._of_callers = Counter[str]()

    def _hold(self, caller: str, size: int) -> None:
        if self._of_callers[caller] + size > MAX_OF_CALLER:
            detail = f"The bodies of your requests together are over {MAX_OF_CALLER:,} bytes."
            raise TooMany(detail, retry_after_s=_RETRY_S)
        if self._held + size > MAX_HELD_BYTES:
            raise Unavailable(f"The bodies of all requests together are over {MAX_HELD_BYTES:,} bytes.")
        self._held += size
        self._of_callers[caller] += size

    def _free(self, caller: str, sizes: Sequence[int]) -> None:
        self._held -= sum(sizes)
        self._of_callers[caller] -= sum(sizes)
        if not self._of_callers[caller]:
            del self._of_callers[caller]

    async def whole(self, scope: Scope, receive: Receive) -> bytes:
        """Return the whole request body. Raises Cancelled if the caller leaves before its end, TooMany, Unavailable."""
        message = await receive()
        body: bytes = message.get("body", b"")
        if not message.get("more_body", False) and message["type"] == "http.request":
            return body
        parts, sizes, caller = [body], list[int](), name_of(scope)
        request = asyncio.current_task()
        assert request is not None
        request.add_done_callback(lambda _: self._free(caller, sizes))
        while message.get("more_body", False):
            message = await receive()
            parts.append(message.get("body", b""))
            self._hold(caller, len(parts[-1]))
            sizes.append(len(parts[-1]))
        if message["type"] == "http.disconnect":
            raise Cancelled
        return await run_in_threadpool(b"".join, parts)  # Python's lock is free while it copies a long body


async def received(request: Request) -> bytes:
    """Return the body that WholeBody received: `request.body()` would copy it on the event loop."""
    body: bytes = (await request.receive())["body"]
    return body


def cancel(scope: Scope) -> None:
    """End the work of a request, if it has any."""
    work: Cancellation | None = scope.get(_WORK)
    if work is not None:
        work.cancelled = True


async def in_thread(scope: Scope, receive: Receive, queue: WorkQueue, work: Callable[[], T]) -> T:
    """Return the result of work in a thread, which is cancelled if the caller leaves. The body was received."""
    async with _watched(scope, receive) as left, queue.turn(name_of(scope), left):
        return await run_in_threadpool(work)


class WholeBody:
    """Receive the whole body before the application runs in its turn, and cancel its work if the caller leaves."""

    def __init__(self, app: ASGIApp, bodies: Bodies, queues: WorkQueues) -> None:
        self._app = app
        self._bodies = bodies
        self._queues = queues

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its body in one part, or answer why it has no whole body or no turn."""
        try:
            await self._in_turn(scope, receive, send)
        except GpucastError as error:
            await problems.error_response(error)(scope, receive, send)

    async def _in_turn(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await self._bodies.whole(scope, receive)
        parts = [{"type": "http.request", "body": body, "more_body": False}]
        async with _watched(scope, receive) as left, self._queues.turn(scope, len(body), left):

            async def replayed() -> Message:
                if not parts:
                    await left.wait()
                    return {"type": "http.disconnect"}
                return parts.pop()

            await self._app(scope, replayed, send)


@asynccontextmanager
async def _watched(scope: Scope, receive: Receive) -> AsyncIterator[asyncio.Event]:
    """Make work that can be cancelled, and cancel it if the caller leaves meanwhile; the event says so."""
    left = asyncio.Event()
    scope[_WORK] = Cancellation.begin(name_of(scope))
    watching = asyncio.get_running_loop().create_task(_watch(scope, receive, left))
    try:
        yield left
    finally:
        watching.cancel()


async def _watch(scope: Scope, receive: Receive, left: asyncio.Event) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    cancel(scope)
    left.set()
