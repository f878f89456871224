"""POST /predict: the hot route, at ASGI level; its schema is added to the OpenAPI document by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from app.api.access import caller_of
from app.api.bodies import in_thread
from app.api.deps import Saving, moved
from app.api.middleware import Service
from app.engine.snapshot_holder import SnapshotHolder
from app.errors import NotFound
from app.services.dispatch import predict_workload
from app.services.kernels.predict_kernels import predict_kernels
from app.wire.kernel_workload import GpuRef
from app.wire.operator_forms import OperatorsRequest
from app.wire.predict_body import Request, Response, read_request, write_response
from app.wire.prediction_form import MAX_GPUS, PredictRequest, PredictResponse
from app.wire.serving_form import ServingRequest

# Work in pairs of a GPU and a measurement of a kernel, each some 5 us. So many take less than 5 ms, for which the event
# loop can be held; longer bodies take as long to read.
INLINE_PAIRS = 512
INLINE_BYTES = 65_536
# An operator costs as much as 4 pairs, one in detail (`explanation`) as 32, and so does a GPU's inline specification.
_OPERATOR, _DETAIL, _SPECIFICATION = 4, 32, 32
# A served model costs as much on each GPU as 800 pairs. From 0.1 s on, predictions have few threads.
_SERVED, LONG_PAIRS = 800, 20_000
_FEW = 16  # measurements are short work even with a specification each


def is_short(request: Request) -> bool:
    """Return whether the answer takes less than 5 ms. Networks and columns may take longer, and saving always does."""
    if request.save:
        return False
    if isinstance(request, PredictRequest):
        return _kernel_pairs(request) <= INLINE_PAIRS
    return isinstance(request, OperatorsRequest) and _operator_pairs(request) <= INLINE_PAIRS


def is_long(request: Request) -> bool:
    """Return whether the answer may take over 0.1 s: operators in detail or a served model, on many GPUs."""
    if isinstance(request, ServingRequest):
        return _gpus(request) * _SERVED > LONG_PAIRS
    return isinstance(request, OperatorsRequest) and _operator_pairs(request) > LONG_PAIRS


def _operator_pairs(request: OperatorsRequest) -> int:
    each = _DETAIL if request.detail else _OPERATOR
    return _gpus(request) * len(request.workload.operators) * each + _specification(request.gpu)


def _kernel_pairs(request: PredictRequest) -> int:
    measured = request.workload.measured
    if request.gpus is None and len(measured) < _FEW:
        return _FEW
    pairs = _gpus(request) * (1 + len(measured)) + _specification(request.gpu)
    return pairs + sum(_specification(row.gpu) for row in measured) if pairs <= INLINE_PAIRS else pairs


def _gpus(request: Request) -> int:
    if request.gpus is None:
        return 1
    if request.gpus == "all":
        return MAX_GPUS
    return sum(max(_specification(gpu), 1) for gpu in request.gpus)


def _specification(gpu: GpuRef | None) -> int:
    return _SPECIFICATION if isinstance(gpu, dict) else 0


Answer: TypeAlias = PredictResponse | Exception
Done: TypeAlias = Callable[[Answer], None]


class KernelBatch:
    """Requests that arrive within two turns of the event loop.

    By the second turn it has read what other connections sent meanwhile.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[PredictRequest, Done]] = []
        self._loop: asyncio.AbstractEventLoop | None = None  # of those that wait

    def add(self, holder: SnapshotHolder, request: PredictRequest, done: Done) -> None:
        """Compute the answer together with those of all waiting requests, then call `done` with it."""
        if self._loop is None or not self._waiting:
            self._loop = asyncio.get_running_loop()  # a system call
            self._loop.call_soon(self._loop.call_soon, self._flush, holder)
        self._waiting.append((request, done))

    def _flush(self, holder: SnapshotHolder) -> None:
        waiting, self._waiting = self._waiting, []
        answers = _all(holder, [request for request, _ in waiting])
        for (_, done), answer in zip(waiting, answers, strict=True):
            done(answer)


def _all(holder: SnapshotHolder, requests: Sequence[PredictRequest]) -> Sequence[Answer]:
    """Return all answers. A defect caused by one request is only returned for that request."""
    try:
        return predict_kernels(holder.snapshot, requests)
    except Exception as error:
        if len(requests) == 1:
            return [error]
        return [answer for request in requests for answer in _all(holder, [request])]


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
        raw = await app.bodies.whole(scope, receive)
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
            queue = app.queues.predicting_long if is_long(request) else app.queues.predicting
            answer, body = await in_thread(scope, receive, queue, partial(_written, scope, request))
        elif isinstance(request, PredictRequest):
            answer = await self._together(holder, request)
            body = write_response(answer)
        else:
            answer, body = _written(scope, request)
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


def _written(scope: Scope, request: Request) -> tuple[Response, bytes]:
    """Return the answer, and as JSON; it is saved if the request says so."""
    app: Service = scope["app"]
    runtime, snapshot = app.state.runtime, app.state.holder.snapshot
    answer = predict_workload(snapshot, request, max_rows=runtime.settings.max_batch_rows, graphs=app.state.graphs)
    answer = Saving("predict", runtime, caller_of(scope)).saved(snapshot, request, answer)
    return answer, write_response(answer)
