"""Queues of requests that work in threads: some work, some wait, and others are refused at once.

Callers take turns, and none works in all places, so that one that sends much delays itself alone. What predicts and
what needs the database have a queue each, so that predictions go on while the database hangs. Large
bodies, of which each takes some 300 MiB while it is worked on, wait for one another before that, and so do those that
take milliseconds of Python's lock: sixteen threads that want it make the event loop wait for half a second.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from contextvars import ContextVar

from anyio import from_thread
from starlette.types import Scope

from app.api.access import name_of
from app.coefficients import Coefficients
from app.errors import Cancelled, TooMany, Unavailable
from app.runtime.cancellation import check_cancelled

# Threads that work: under Python's lock more do not predict faster, and each delays the event loop by some
# milliseconds. Of the database there are as many as connections; probes have the rest of Starlette's 40.
_PREDICTING, _STORING = 4, 16
# Of those that search among GPUs and splits, some for minutes: the others predict meanwhile. Of predictions of over
# 0.1 s one caller has one at a time, which leaves others' small ones more of Python's lock than three do.
_SEARCHING, _PREDICTING_LONG = 2, 2
# Of predictions that read or save something: those that wait hold threads, so there are as many together.
_SAVING, _SAVING_WAITING, _SAVING_TOGETHER = 4, 5, 8
# Of each queue's places the most that one caller works in.
_SHARE = Coefficients("service").number("share_of_caller")
# Time after which a caller that has too much waiting should try again.
_RETRY_S = 2
# Time that its refusal takes: refused at once, it sends hundreds a second again, and the event loop is busy with those.
_REFUSAL_S = Coefficients("service").number("refusal_s")
# Of large bodies: together they take less than a GiB.
_PREDICTING_LARGE, _STORING_LARGE = 2, 1
# Of bodies and listings that take milliseconds, among requests that store.
_STORING_LONG = 3
# JSON takes up to 40 times its bytes as objects. Parquet and Arrow unpack to more than is known beforehand.
LARGE_BYTES, LONG_BYTES = 2**19, 2**13
_FILES = (b"parquet", b"arrow")
_PREDICTIONS = frozenset(("/", "/compare", "/detail", "/partition", "/plan", "/predict/batch", "/scaling", "/serving"))
_SEARCHES = frozenset(("/", "/compare", "/partition", "/plan", "/scaling", "/serving"))
_SAVED = "/predictions/"  # each reader of a saved answer has it computed anew: of a plan, for seconds
_LISTINGS = ("/gpus", "/graphs", "/measurements", "/openapi.json", "/predictions", "/predictors", "/prices", "/uploads")
_PREDICTING_ENDS = ("/plan", "/bulk", "/bulk/strict")  # of llm-d, a thousand predictions
_PROBES = frozenset(("/healthz", "/livez", "/metrics", "/readyz"))


def is_probe(scope: Scope) -> bool:
    """Return whether a request asks how the process is."""
    return _path(scope) in _PROBES


def _path(scope: Scope) -> str:
    return str(scope["path"]).removeprefix(scope.get("root_path", ""))


def use_database() -> None:
    """Give the turn to another request if this one predicts: a hung database must not hold predictions.

    Called in the thread that works for the request, before it reads or saves something. Raises Unavailable if too many
    wait for that already.
    """
    turn = _TURN.get()
    if turn is not None and turn.queue is not None and turn.queue.after is not None:
        from_thread.run(turn.go_on_in, turn.queue.after)


def use_much() -> None:
    """Wait for a turn of large requests, in the thread of one that turns out to be large. Raises TooMany."""
    turn = _TURN.get()
    if turn is not None and turn.queue is not None and turn.queue.large is not None:
        from_thread.run(turn.go_on_in, turn.queue.large)


class WorkQueue:
    """A queue in which callers take turns: `working` requests work at a time, of one caller at most its share of them.

    Of each caller at most `waiting` requests wait, and of all at most `together`. `after` is the queue in which they go
    on when they need the database, `large` that of those that turn out to be large; None: this one.
    """

    def __init__(
        self,
        name: str,
        working: int,
        waiting: int,
        after: WorkQueue | None = None,
        large: WorkQueue | None = None,
        together: int | None = None,
    ) -> None:
        self.after, self.large = after, large
        self._name = name
        self._free, self._share = working, max(int(_SHARE * working), 1)
        self._working = Counter[str]()  # requests of each caller
        self._lines: dict[str, deque[asyncio.Future[None]]] = {}  # of callers that wait, whose turn it is first
        self._most_waiting, self._most_together = waiting, together

    @property
    def waiting(self) -> int:
        """Number of requests that wait."""
        return sum(map(len, self._lines.values()))

    @asynccontextmanager
    async def turn(self, caller: str, left: asyncio.Event) -> AsyncIterator[None]:
        """Wait for a turn, or until the caller left. Raises as `enter`."""
        try:
            await self.enter(caller, left)
        except TooMany:
            await asyncio.sleep(_REFUSAL_S)
            raise
        turn = Turn(self, caller)
        _TURN.set(turn)
        try:
            check_cancelled()
            yield
        finally:
            turn.end()

    async def enter(self, caller: str, left: asyncio.Event) -> None:
        """Wait for a turn, or until the caller left.

        Raises TooMany if too many of the caller's wait, Unavailable if too many of all do, Cancelled if nobody waits.
        """
        if self._has_place(caller):
            self._take(caller)
            return
        line = self._lines.get(caller, ())
        if len(line) >= self._most_waiting:
            most = f"the most that may of one caller: {self._share} of {self._name} work at a time"
            raise TooMany(f"{len(line):,} of your {self._name} wait already, {most}.", retry_after_s=_RETRY_S)
        if self._most_together is not None and self.waiting >= self._most_together:
            raise Unavailable(f"{self._most_together:,} {self._name} wait already, the most that may.")
        await self._wait(caller, left)

    def leave(self, caller: str) -> None:
        """End a turn, and give it to the next caller's first request."""
        self._free += 1
        self._working[caller] -= 1
        if not self._working[caller]:
            del self._working[caller]
        while (following := next(filter(self._has_place, self._lines), None)) is not None:
            line = self._lines.pop(following)
            line.popleft().set_result(None)
            self._take(following)
            if line:  # behind all others
                self._lines[following] = line

    def _has_place(self, caller: str) -> bool:
        return self._free > 0 and self._working[caller] < self._share

    def _take(self, caller: str) -> None:
        self._free -= 1
        self._working[caller] += 1

    async def _wait(self, caller: str, left: asyncio.Event) -> None:
        place = asyncio.get_running_loop().create_future()
        self._lines.setdefault(caller, deque()).append(place)
        leaving = asyncio.ensure_future(left.wait())
        try:
            await asyncio.wait((place, leaving), return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            if place.done():
                self.leave(caller)
            raise
        finally:
            leaving.cancel()
            if not place.done():
                self._step_out(caller, place)
        if not place.done():
            raise Cancelled

    def _step_out(self, caller: str, place: asyncio.Future[None]) -> None:
        line = self._lines[caller]
        line.remove(place)
        if not line:
            del self._lines[caller]


class Turn:
    """A request's turn in a queue, or in the one that it went on to; None between them and after."""

    def __init__(self, queue: WorkQueue, caller: str) -> None:
        self.queue: WorkQueue | None = queue
        self._caller = caller

    async def go_on_in(self, queue: WorkQueue) -> None:
        """Give the turn to the next in its queue, and wait for one in another. Raises TooMany or Unavailable."""
        self.end()
        await queue.enter(self._caller, asyncio.Event())
        self.queue = queue

    def end(self) -> None:
        """Give the turn to the next."""
        if self.queue is not None:
            self.queue.leave(self._caller)
            self.queue = None


_TURN: ContextVar[Turn | None] = ContextVar("turn", default=None)  # of the current request


class WorkQueues:
    """The queues of one API process."""

    def __init__(self, waiting: int) -> None:
        saving = WorkQueue("answers", _SAVING, _SAVING_WAITING, together=_SAVING_TOGETHER)
        self.predicting = WorkQueue("predictions", _PREDICTING, waiting, saving)
        self.predicting_long = WorkQueue("long predictions", _PREDICTING_LONG, waiting, saving)
        self._large = WorkQueue("large requests", _STORING_LARGE, waiting)
        self._storing = WorkQueue("requests", _STORING, waiting, large=self._large)
        self._searches = WorkQueue("searches", _SEARCHING, waiting)
        self._large_predictions = WorkQueue("large predictions", _PREDICTING_LARGE, waiting)
        self._long = WorkQueue("long requests", _STORING_LONG, waiting)

    @asynccontextmanager
    async def turn(self, scope: Scope, size: int, left: asyncio.Event) -> AsyncIterator[None]:
        """Wait for a turn of a request with a body of `size` bytes; probes have none. Raises as WorkQueue.turn.

        Those that wait as large or long ones take no turn from others.
        """
        if is_probe(scope):
            yield
            return
        path = _path(scope)
        predicts = path in _PREDICTIONS or path.startswith("/scheduler/") or path.endswith(_PREDICTING_ENDS)
        queue, narrow = (
            self.predicting if predicts else self._storing,
            self._narrow(scope, path, size, predicts=predicts),
        )
        caller = name_of(scope)
        async with nullcontext() if narrow is None else narrow.turn(caller, left), queue.turn(caller, left):
            yield

    def _narrow(self, scope: Scope, path: str, size: int, *, predicts: bool) -> WorkQueue | None:
        """Return the queue that a request passes before that of all; None of short ones."""
        if path in _SEARCHES or (scope["method"] == "GET" and path.startswith(_SAVED)):
            return self._searches
        media = next((value for name, value in scope["headers"] if name == b"content-type"), b"").lower()
        is_file = any(name in media for name in _FILES)
        # A small file of measurements may have few rows, and goes on among the large ones if it has not (`use_much`).
        if size > LARGE_BYTES or (is_file and (predicts or size > LONG_BYTES)):
            return self._large_predictions if predicts else self._large
        lists = scope["method"] == "GET" and path.startswith(_LISTINGS)
        # Functions of a small ONNX file may call one another a hundred thousand times.
        is_long = lists or size > LONG_BYTES or path == "/graphs" or is_file
        return self._long if is_long and not predicts else None
