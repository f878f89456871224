"""POST /predict: the hot route, at ASGI level; its schema is added to the OpenAPI document by hand."""

from __future__ import annotations

import asyncio
from functools import partial

from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from app.api.current import moved
from app.api.kernel_batch import Answer, KernelBatch
from app.api.receiving import in_thread
from app.api.saving import saved_on_request
from app.api.service import Service
from app.api.work_estimate import INLINE_BYTES, is_short
from app.engine.snapshot import SnapshotHolder
from app.errors import NotFound
from app.services.dispatch import predict_workload
from app.wire.predict_body import Request, Response, read_request, write_response
from app.wire.prediction_form import PredictRequest, PredictResponse

# Sent by callers that just stored something through another process: the snapshot is refreshed first.
_NOTHING_OLDER = (b"cache-control", b"no-cache")
READ = "gpucast_read"  # of the scope: the request, if it was read before
_JSON = (b"content-type", b"application/json")


class PredictRoute:
    """ASGI application of one route: bytes in, engine, bytes out."""

    path = "/predict"

    def __init__(self) -> None:
        self.batch = KernelBatch()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; errors go to the application's handlers."""
        scope["route"] = self  # the route of the metrics
        app: Service = scope["app"]
        holder: SnapshotHolder = app.state.holder
        if _NOTHING_OLDER in scope["headers"]:
            await run_in_threadpool(moved, holder, holder.snapshot)
        raw = await app.bodies.whole(receive)
        request: Request
        if READ in scope:
            request = scope[READ]
        elif len(raw) <= INLINE_BYTES:
            request = read_request(raw)
        else:
            request = await in_thread(scope, receive, app.queues.predicting, partial(read_request, raw))
        before = holder.snapshot
        try:
            body = await self._answer(holder, request, scope, receive)
        except NotFound:  # an unknown GPU triggers one refresh of the snapshot
            if not await run_in_threadpool(moved, holder, before):
                raise
            body = await self._answer(holder, request, scope, receive)
        headers = [_JSON, (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, holder: SnapshotHolder, request: Request, scope: Scope, receive: Receive) -> bytes:
        app: Service = scope["app"]
        answer: Response
        if not is_short(request):
            answer, body = await in_thread(scope, receive, app.queues.predicting, partial(_written, app, request))
        elif isinstance(request, PredictRequest):
            answer = await self._together(holder, request)
            body = write_response(answer)
        else:
            answer, body = _written(app, request)
        for prediction in answer.predictions:
            app.metrics.predicted(prediction.predictor.name, getattr(prediction, "support", "columns"))
        return body

    def _together(self, holder: SnapshotHolder, request: PredictRequest) -> asyncio.Future[PredictResponse]:
        """Return the answer for a kernel, computed together with all waiting requests."""
        future: asyncio.Future[PredictResponse] = asyncio.get_running_loop().create_future()
        self.batch.add(holder, request, partial(_settle, future))
        return future


def _settle(future: asyncio.Future[PredictResponse], answer: Answer) -> None:
    if future.done():  # the caller disconnected
        return
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)


def _written(app: Service, request: Request) -> tuple[Response, bytes]:
    """Return the answer, and as JSON; it is saved if the request says so."""
    runtime, snapshot = app.state.runtime, app.state.holder.snapshot
    answer = predict_workload(snapshot, request, max_rows=runtime.settings.max_batch_rows, graphs=app.state.graphs)
    answer = saved_on_request(runtime.database, snapshot, "predict", request, answer)
    return answer, write_response(answer)
