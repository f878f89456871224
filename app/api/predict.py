"""POST /predict: the hot route, at ASGI level; its schema is added to the OpenAPI document by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from app.api.current import moved
from app.api.metrics import Metrics
from app.api.receiving import in_thread
from app.api.service import Service
from app.api.work_estimate import INLINE_BYTES, is_short
from app.engine.snapshot import SnapshotHolder
from app.errors import NotFound
from app.services.dispatch import predict_workload
from app.services.kernels.predict_kernels import predict_kernels
from app.services.quotes.save import save_answer
from app.wire.predict_body import Request, Response, read_request, write_response
from app.wire.prediction_form import PredictRequest, PredictResponse

# Sent by callers that just stored something through another process: the snapshot is refreshed first.
_NOTHING_OLDER = (b"cache-control", b"no-cache")


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
        raw = await app.bodies.whole(receive)
        request = (
            read_request(raw)
            if len(raw) <= INLINE_BYTES
            else await in_thread(scope, receive, app.queues.predicting, partial(read_request, raw))
        )
        body = await self._answer(app, request, scope, receive)
        length = str(len(body)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", length)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, app: Service, request: Request, scope: Scope, receive: Receive) -> bytes:
        """Return the answer; an unknown GPU triggers one refresh of the snapshot."""
        before = app.state.holder.snapshot
        try:
            return await self._predicted(app, request, scope, receive)
        except NotFound:
            if not await run_in_threadpool(moved, app.state.holder, before):
                raise
        return await self._predicted(app, request, scope, receive)

    async def _predicted(self, app: Service, request: Request, scope: Scope, receive: Receive) -> bytes:
        state = app.state
        holder: SnapshotHolder = state.holder
        short = is_short(request)
        if short and isinstance(request, PredictRequest):
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

        answer_, body = written() if short else await in_thread(scope, receive, app.queues.predicting, written)
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
