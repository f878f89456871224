"""POST /predict: the hot route, at ASGI level; its schema joins the OpenAPI document by hand."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from app.errors import NotFound, Unavailable
from app.services.predict import predict
from app.services.prediction_form import MAX_GPUS, PredictRequest, read_request, write_response
from app.services.snapshot import SnapshotHolder

# Over so many pairs of GPU and measurement, the work leaves the event loop.
INLINE_PAIRS = 512
_START = {
    "type": "http.response.start",
    "status": 200,
}


class PredictRoute:
    """ASGI application of one route: bytes in, engine, bytes out."""

    path = "/predict"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; errors go to the application's handlers."""
        scope["route"] = self  # what metrics count under
        app: Starlette = scope["app"]
        body = await answer(app.state.holder, await _body(receive))
        length = str(len(body)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", length)]
        await send({**_START, "headers": headers})
        await send({"type": "http.response.body", "body": body})


async def answer(holder: SnapshotHolder, body: bytes) -> bytes:
    """The response to a request's body; a GPU that nobody here knows is looked for in the database once."""
    request = read_request(body)
    try:
        return await _answer(holder, request)
    except NotFound:
        if not await run_in_threadpool(_moved, holder):
            raise
    return await _answer(holder, request)


async def _answer(holder: SnapshotHolder, request: PredictRequest) -> bytes:
    if _pairs(request) > INLINE_PAIRS:
        return await run_in_threadpool(_predicted, holder, request)
    return _predicted(holder, request)


def _predicted(holder: SnapshotHolder, request: PredictRequest) -> bytes:
    return write_response(predict(holder.snapshot, request))


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
