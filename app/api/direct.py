"""Direct answers to kernels of POST /predict, whose heads are parsed once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast

from starlette.types import ASGIApp, Scope

from app.api import problems
from app.api.middleware import Observe
from app.api.predict import INLINE_BYTES, READ, Answer, PredictRoute, is_short
from app.api.usual_answer import UsualAnswer
from app.errors import GpucastError
from app.wire.predict_body import Request, read_request, write_response
from app.wire.prediction_form import PredictRequest, PredictResponse

if TYPE_CHECKING:
    from app.api.middleware import Service

_END = b"\r\n\r\n"
# Longer heads are parsed, and of more heads all are forgotten: this bounds what clients with new ones leave behind.
_MOST_BYTES, _MOST_HEADS = 2048, 512


class Known(NamedTuple):
    """A request whose head was parsed before: its scope, as the parser's callbacks left it, and its body."""

    scope: Scope
    body: bytes


class KnownHeads:
    """Scopes by head. A head says all that a parser finds out about a request of one piece."""

    def __init__(self) -> None:
        self._scopes: dict[bytes, tuple[Scope, int]] = {}

    def find(self, piece: bytes) -> Known | None:
        """Return the request in a piece that begins with a known head and ends with all of its body."""
        end = piece.find(_END, 0, _MOST_BYTES) + len(_END)
        known = self._scopes.get(piece[:end])
        if known is None or len(piece) != known[1]:
            return None
        return Known({**known[0], "headers": known[0]["headers"].copy()}, piece[end:])

    def learn(self, piece: bytes, scope: Scope, body: bytes | bytearray) -> None:
        """Remember the scope of a request, unless the piece is anything but its head and its `body` as it came."""
        end = piece.find(_END, 0, _MOST_BYTES) + len(_END)
        if end < len(_END) or piece[end:] != body:
            return
        if len(self._scopes) >= _MOST_HEADS:
            self._scopes.clear()
        self._scopes[piece[:end]] = scope, len(piece)


Start: TypeAlias = Callable[[ASGIApp | None], None]

DIRECT = "direct"  # of the lifespan's state, which the server hands to its connections
_OK = 200
_HEAD = b"content-type: application/json\r\ncontent-length: %d\r\nx-request-id: %s\r\n"
# Headers of requests that are not answered directly: an encoding is refused, another protocol or a refresh requested.
_UNUSUAL = frozenset((b"cache-control", b"content-encoding", b"upgrade"))
# Behind a proxy it names the caller, whose requests a rate limit counts.
_FORWARDED = b"x-forwarded-for"


class Direct:
    """Answers whole requests at once, with the keys, limits, ids and metrics of the application."""

    def __init__(self, app: Service, route: PredictRoute) -> None:
        self._app, self._route = app, route
        self.heads = KnownHeads()  # of requests that it takes
        self._most_bytes = min(INLINE_BYTES, app.limits.of(route.path))
        self._unusual = _UNUSUAL if app.rate is None else _UNUSUAL | {_FORWARDED}

    def takes(self, scope: Scope) -> bool:
        """Return whether a request may be answered directly, by its head."""
        if scope["path"] != self._route.path or scope["method"] != "POST":
            return False
        return not any(name in self._unusual for name, _ in scope["headers"])

    def answer(self, cycle: UsualAnswer, start: Start) -> None:
        """Answer a request whose body was received, or `start` an application for it: None is the service's."""
        began = time.perf_counter()
        if len(cycle.body) > self._most_bytes:
            start(None)
            return
        try:
            request = self._read(cast(Scope, cycle.scope), bytes(cycle.body))
        except GpucastError as error:
            start(Observe(problems.error_response(error), self._app.metrics))
            return
        except Exception:  # a defect, which the application reports
            start(None)
            return
        if isinstance(request, PredictRequest) and is_short(request):
            waiting = _Waiting(self._app, self._route.path, cycle, start, began)
            self._route.batch.add(self._app.state.holder, request, waiting.answered)
        else:
            start(None)

    def _read(self, scope: Scope, body: bytes) -> Request:
        """Return the request of an admitted caller; whoever goes on with it finds both done."""
        scope["app"] = self._app
        if self._app.access is not None:
            self._app.access.admit(scope)
        scope["route"] = self._route
        request = scope[READ] = read_request(body)
        return request


class _Waiting:
    """A request that waits for its answer since `began`, seconds of `perf_counter`."""

    __slots__ = ("_app", "_began", "_cycle", "_path", "_start")

    def __init__(self, app: Service, path: str, cycle: UsualAnswer, start: Start, began: float) -> None:
        self._app, self._path, self._cycle, self._start, self._began = app, path, cycle, start, began

    def answered(self, answer: Answer) -> None:
        """Send the answer; the application sends errors, and what a connection does not take at once."""
        if isinstance(answer, Exception) or not self._sent(answer):
            self._start(None)
            return
        metrics = self._app.metrics
        for prediction in answer.predictions:
            metrics.predicted(prediction.predictor.name, prediction.support)
        metrics.observe("POST", self._path, _OK, time.perf_counter() - self._began)

    def _sent(self, answer: PredictResponse) -> bool:
        try:
            body = write_response(answer)
        except Exception:  # a defect, which must not hold the answers of others; the application reports it
            return False
        name = self._app.observe.request_id(cast(Scope, self._cycle.scope))
        return self._cycle.answer(_HEAD % (len(body), name), body)
