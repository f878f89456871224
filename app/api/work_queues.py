"""Queues of requests that work in threads: some work, some wait, and others get 503 at once.

What predicts and what needs the database have a queue each, so that predictions go on while the database hangs. Large
bodies, of which each takes some 300 MiB while it is worked on, wait for one another before that, and so do those that
take milliseconds of Python's lock: sixteen threads that want it make the event loop wait for half a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from contextvars import ContextVar

from anyio import from_thread
from starlette.types import Scope

from app.errors import Cancelled, Unavailable
from app.runtime.cancellation import check_cancelled

# Threads that work: under Python's lock more do not predict faster, and each delays the event loop by some
# milliseconds. Of the database there are as many as connections; probes have the rest of Starlette's 40.
_PREDICTING, _STORING = 4, 16
# Of those that search among GPUs and splits, some for minutes: the others predict meanwhile.
_SEARCHING = 2
# Of predictions that read or save something: those that wait hold threads.
_SAVING, _SAVING_WAITING = 4, 8
# Of large bodies: together they take less than a GiB.
_PREDICTING_LARGE, _STORING_LARGE = 2, 1
# Of bodies and listings that take milliseconds, among requests that store.
_STORING_LONG = 3
# JSON takes up to 40 times its bytes as objects. Parquet and Arrow unpack to more than is known beforehand.
LARGE_BYTES, LONG_BYTES = 2**19, 2**13
_FILES = (b"parquet", b"arrow")
_PREDICTIONS = frozenset(("/", "/compare", "/detail", "/partition", "/plan", "/predict/batch", "/scaling", "/serving"))
_SEARCHES = frozenset(("/", "/compare", "/partition", "/plan", "/scaling", "/serving"))
_LISTINGS = ("/gpus", "/graphs", "/measurements", "/openapi.json", "/predictions", "/predictors", "/prices", "/uploads")
_PREDICTING_ENDS = ("/plan", "/bulk", "/bulk/strict")  # of llm-d, a thousand predictions
_PROBES = frozenset(("/healthz", "/livez", "/metrics", "/readyz"))


def use_database() -> None:
    """Give the turn to another request if this one predicts: a hung database must not hold predictions.

    Called in the thread that works for the request, before it reads or saves something. Raises Unavailable if too many
    wait for that already.
    """
    turn = _TURN.get()
    if turn is not None and turn.queue is not None and turn.queue.after is not None:
        from_thread.run(turn.go_on_in, turn.queue.after)


class WorkQueue:
    """A queue of at most `waiting` requests, `working` of which work at a time.

    `after` is the queue in which they go on when they need the database; None: this one.
    """

    def __init__(self, name: str, working: int, waiting: int, after: WorkQueue | None = None) -> None:
        self.after = after
        self._name = name
        self._free = asyncio.Semaphore(working)
        self._waiting, self._most_waiting = 0, waiting

    @asynccontextmanager
    async def turn(self, left: asyncio.Event) -> AsyncIterator[None]:
        """Wait for a turn, or until the caller left. Raises Unavailable if too many wait, Cancelled if nobody does."""
        await self.enter(left)
        turn = Turn(self)
        _TURN.set(turn)
        try:
            check_cancelled()
            yield
        finally:
            turn.end()

    async def enter(self, left: asyncio.Event) -> None:
        """Wait for a turn, or until the caller left. Raises Unavailable or Cancelled."""
        if self._free.locked():
            await self._wait(left)
        else:
            await self._free.acquire()

    def leave(self) -> None:
        """End a turn."""
        self._free.release()

    async def _wait(self, left: asyncio.Event) -> None:
        if self._waiting >= self._most_waiting:
            raise Unavailable(f"{self._most_waiting:,} {self._name} wait already, the most that may.")
        self._waiting += 1
        acquiring = asyncio.ensure_future(self._free.acquire())
        leaving = asyncio.ensure_future(left.wait())
        try:
            await asyncio.wait((acquiring, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waiting -= 1
            leaving.cancel()
            if not acquiring.done():
                acquiring.cancel()
        if acquiring.cancelled() or not acquiring.done():
            raise Cancelled


class Turn:
    """A request's turn in a queue, or in the one that it went on to; None between them and after."""

    def __init__(self, queue: WorkQueue) -> None:
        self.queue: WorkQueue | None = queue

    async def go_on_in(self, queue: WorkQueue) -> None:
        """Give the turn to the next in its queue, and wait for one in another. Raises Unavailable."""
        self.end()
        await queue.enter(asyncio.Event())
        self.queue = queue

    def end(self) -> None:
        """Give the turn to the next."""
        if self.queue is not None:
            self.queue.leave()
            self.queue = None


_TURN: ContextVar[Turn | None] = ContextVar("turn", default=None)  # of the current request


class WorkQueues:
    """The queues of one API process."""

    def __init__(self, waiting: int) -> None:
        saving = WorkQueue("answers", _SAVING, _SAVING_WAITING)
        self.predicting = WorkQueue("predictions", _PREDICTING, waiting, saving)
        self._storing = WorkQueue("requests", _STORING, waiting)
        self._searches = WorkQueue("searches", _SEARCHING, waiting)
        self._large_predictions = WorkQueue("large predictions", _PREDICTING_LARGE, waiting)
        self._large = WorkQueue("large requests", _STORING_LARGE, waiting)
        self._long = WorkQueue("long requests", _STORING_LONG, waiting)

    @asynccontextmanager
    async def turn(self, scope: Scope, size: int, left: asyncio.Event) -> AsyncIterator[None]:
        """Wait for a turn of a request with a body of `size` bytes; probes have none. Raises as WorkQueue.turn.

        Those that wait as large or long ones take no turn from others.
        """
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if path in _PROBES:
            yield
            return
        predicts = path in _PREDICTIONS or path.startswith("/scheduler/") or path.endswith(_PREDICTING_ENDS)
        queue, narrow = (
            self.predicting if predicts else self._storing,
            self._narrow(scope, path, size, predicts=predicts),
        )
        async with nullcontext() if narrow is None else narrow.turn(left), queue.turn(left):
            yield

    def _narrow(self, scope: Scope, path: str, size: int, *, predicts: bool) -> WorkQueue | None:
        """Return the queue that a request passes before that of all; None of short ones."""
        if path in _SEARCHES:
            return self._searches
        media = next((value for name, value in scope["headers"] if name == b"content-type"), b"").lower()
        if size > LARGE_BYTES or any(name in media for name in _FILES):
            return self._large_predictions if predicts else self._large
        lists = scope["method"] == "GET" and path.startswith(_LISTINGS)
        # Functions of a small ONNX file may call one another a hundred thousand times.
        is_long = lists or size > LONG_BYTES or path == "/graphs"
        return self._long if is_long and not predicts else None
