"""POST /predict: the hot route, at ASGI level; its schema joins the OpenAPI document by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from app.errors import NotFound, Unavailable
from app.services.predict import predict, predict_many
from app.services.prediction_form import MAX_GPUS, PredictRequest, PredictResponse, read_request, write_response
from app.services.snapshot import SnapshotHolder

# Over so many pairs of GPU and measurement, the work leaves the event loop.
INLINE_PAIRS = 512


class PredictRoute:
    """ASGI application of one route: bytes in, engine, bytes out.

    Requests that arrive within two turns of the event loop are answered together: in the second one it has read
    what other connections sent meanwhile.
    """

    path = "/predict"

    def __init__(self) -> None:
        self._waiting: list[tuple[PredictRequest, asyncio.Future[PredictResponse]]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; errors go to the application's handlers."""
        scope["route"] = self  # what metrics count under
        app: Starlette = scope["app"]
        body = write_response(await self._answer(app.state.holder, read_request(await _body(receive))))
        length = str(len(body)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", length)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, holder: SnapshotHolder, request: PredictRequest) -> PredictResponse:
        """A GPU that nobody here knows is looked for in the database once."""
        try:
            return await self._predicted(holder, request)
        except NotFound:
            if not await run_in_threadpool(_moved, holder):
                raise
        return await self._predicted(holder, request)

    async def _predicted(self, holder: SnapshotHolder, request: PredictRequest) -> PredictResponse:
        if _pairs(request) > INLINE_PAIRS:
            return await run_in_threadpool(predict, holder.snapshot, request)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[PredictResponse] = loop.create_future()
        if not self._waiting:
            loop.call_soon(loop.call_soon, self._flush, holder)
        self._waiting.append((request, answer))
        return await answer

    def _flush(self, holder: SnapshotHolder) -> None:
        waiting, self._waiting = self._waiting, []
        for (_, future), answer in zip(waiting, _all(holder, [request for request, _ in waiting]), strict=True):
            if future.done():  # the caller has gone
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)


def _all(holder: SnapshotHolder, requests: Sequence[PredictRequest]) -> Sequence[PredictResponse | Exception]:
    """Every answer; a defect that one request brings out stays with that request."""
    try:
        return predict_many(holder.snapshot, requests)
    except Exception as error:
        if len(requests) == 1:
            return [error]
        return [answer for request in requests for answer in _all(holder, [request])]


def _pairs(request: PredictRequest) -> int:
    if request.gpus is None:
        return 1
    gpus = MAX_GPUS if request.gpus == "all" else len(request.gpus)
    return gpus * (1 + len(request.workload.measured))


def _moved(holder: SnapshotHolder) -> bool:
    try:
        return holder.refresh()
    except Unavailable:
        return False


async def _body(receive: Receive) -> bytes:
    """The whole request body."""
    message = await receive()
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False):
        return body
    parts = [body]
    while message.get("more_body", False):
        message = await receive()
        parts.append(message.get("body", b""))
    return b"".join(parts)
