"""POST /predict: the hot route, at ASGI level; its schema is added to the OpenAPI document by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from app.api.current import moved
from app.api.metrics import Metrics
from app.api.service import Service
from app.engine.snapshot import SnapshotHolder
from app.errors import NotFound
from app.services.dispatch import predict_workload
from app.services.kernels.predict_kernels import predict_kernels
from app.services.quotes.save import save_answer
from app.wire.network_form import ModelRequest
from app.wire.operators.operators_form import OperatorsRequest
from app.wire.predict_body import Request, Response, read_request, write_response
from app.wire.prediction_form import MAX_GPUS, PredictRequest, PredictResponse

# Work over so many pairs of GPU and measurement or operator leaves the event loop; so do long bodies.
INLINE_PAIRS = 512
INLINE_BYTES = 65_536
# Sent by callers that just stored something through another process: the snapshot is refreshed first.
_NOTHING_OLDER = (b"cache-control", b"no-cache")
# A network costs about as much as this many operators; its serving figures as much as a few networks.
_ROWS_OF_MODEL = 256


class PredictRoute:
    """ASGI application of one route: bytes in, engine, bytes out.

    Requests that arrive within two turns of the event loop are answered together: by the second turn it has read what
    other connections sent meanwhile.
    """

    path = "/predict"

    def __init__(self) -> None:
        self._waiting: list[tuple[PredictRequest, asyncio.Future[PredictResponse]]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; errors go to the application's handlers."""
        scope["route"] = self  # the route of the metrics
        app: Service = scope["app"]
        if _NOTHING_OLDER in scope["headers"]:
            holder: SnapshotHolder = app.state.holder
            await run_in_threadpool(moved, holder, holder.snapshot)
        raw = await _body(receive)
        request = read_request(raw) if len(raw) <= INLINE_BYTES else await run_in_threadpool(read_request, raw)
        body = await self._answer(app, request)
        length = str(len(body)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", length)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, app: Service, request: Request) -> bytes:
        """Return the answer; an unknown GPU triggers one refresh of the snapshot."""
        before = app.state.holder.snapshot
        try:
            return await self._predicted(app, request)
        except NotFound:
            if not await run_in_threadpool(moved, app.state.holder, before):
                raise
        return await self._predicted(app, request)

    async def _predicted(self, app: Service, request: Request) -> bytes:
        state = app.state
        holder: SnapshotHolder = state.holder
        few = not request.save and _pairs(request) <= INLINE_PAIRS
        if few and isinstance(request, PredictRequest):
            answer = await self._together(holder, request)
            _count(app.metrics, answer)
            return write_response(answer)

        def written() -> tuple[Response, bytes]:
            most: int = state.runtime.settings.max_batch_rows
            snapshot = holder.snapshot
            answer = predict_workload(snapshot, request, max_rows=most, graphs=state.graphs)
            if request.save:
                answer = save_answer(state.runtime.database, snapshot, "predict", request, answer)
            return answer, write_response(answer)

        answer_, body = written() if few else await run_in_threadpool(written)
        _count(app.metrics, answer_)
        return body

    async def _together(self, holder: SnapshotHolder, request: PredictRequest) -> PredictResponse:
        """Return the answer for a kernel, computed together with all waiting requests."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[PredictResponse] = loop.create_future()
        if not self._waiting:
            loop.call_soon(loop.call_soon, self._flush, holder)
        self._waiting.append((request, answer))
        return await answer

    def _flush(self, holder: SnapshotHolder) -> None:
        waiting, self._waiting = self._waiting, []
        for (_, future), answer in zip(waiting, _all(holder, [request for request, _ in waiting]), strict=True):
            if future.done():  # the caller disconnected
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)


def _all(holder: SnapshotHolder, requests: Sequence[PredictRequest]) -> Sequence[PredictResponse | Exception]:
    """Return all answers. A defect caused by one request is only returned for that request."""
    try:
        return predict_kernels(holder.snapshot, requests)
    except Exception as error:
        if len(requests) == 1:
            return [error]
        return [answer for request in requests for answer in _all(holder, [request])]


def _count(metrics: Metrics, answer: Response) -> None:
    for prediction in answer.predictions:
        metrics.predicted(prediction.predictor.name, getattr(prediction, "support", "columns"))


def _pairs(request: Request) -> int:
    if isinstance(request, PredictRequest):
        if request.gpus is None:
            return 1
        return _gpus(request) * (1 + len(request.workload.measured))
    if isinstance(request, OperatorsRequest):
        return _gpus(request) * len(request.workload.operators)
    if isinstance(request, ModelRequest):
        return _gpus(request) * _ROWS_OF_MODEL * (1 if request.workload.output_tokens is None else INLINE_PAIRS)
    return INLINE_PAIRS + 1


def _gpus(request: Request) -> int:
    if request.gpus is None:
        return 1
    return MAX_GPUS if request.gpus == "all" else len(request.gpus)


async def _body(receive: Receive) -> bytes:
    """Return the whole request body."""
    message = await receive()
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False):
        return body
    parts = [body]
    while message.get("more_body", False):
        message = await receive()
        parts.append(message.get("body", b""))
    return b"".join(parts)
