"""Queues of requests that work in threads: some work, some wait, and others get 503 at once.

What predicts and what needs the database have a queue each, so that predictions go on while the database hangs. Large
bodies, of which each takes some 300 MiB while it is worked on, wait for one another before that.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

from app.errors import Cancelled, Unavailable
from app.runtime.cancellation import check_cancelled

# Threads that work: under Python's lock more do not predict faster, and each delays the event loop by some
# milliseconds. Of the database there are as many as connections; probes have the rest of Starlette's 40.
_PREDICTING, _STORING = 4, 16
# Of large bodies: together they take less than a GiB.
_PREDICTING_LARGE, _STORING_LARGE = 2, 1
# JSON takes up to 40 times its bytes as objects. Parquet and Arrow unpack to more than can be told beforehand.
LARGE_BYTES = 2**19
_FILES = (b"parquet", b"arrow")
_PREDICTIONS = frozenset(("/", "/compare", "/detail", "/partition", "/plan", "/predict/batch", "/scaling", "/serving"))
_PROBES = frozenset(("/healthz", "/livez", "/metrics", "/readyz"))


class WorkQueue:
    """A queue of at most `waiting` requests, `working` of which work at a time."""

    def __init__(self, name: str, working: int, waiting: int) -> None:
        self._name = name
        self._free = asyncio.Semaphore(working)
        self._waiting, self._most_waiting = 0, waiting

    @asynccontextmanager
    async def turn(self, left: asyncio.Event) -> AsyncIterator[None]:
        """Wait for a turn, or until the caller left. Raises Unavailable if too many wait, Cancelled if nobody does."""
        if self._free.locked():
            await self._wait(left)
        else:
            await self._free.acquire()
        try:
            check_cancelled()
            yield
        finally:
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


class WorkQueues:
    """The queues of one API process."""

    def __init__(self, waiting: int) -> None:
        self.predicting = WorkQueue("predictions", _PREDICTING, waiting)
        self._storing = WorkQueue("requests", _STORING, waiting)
        self._predicting_large = WorkQueue("large predictions", _PREDICTING_LARGE, waiting)
        self._storing_large = WorkQueue("large requests", _STORING_LARGE, waiting)

    @asynccontextmanager
    async def turn(self, path: str, size: int, media: bytes, left: asyncio.Event) -> AsyncIterator[None]:
        """Wait for a turn of a route with a body of `size` bytes of a media type; probes have none.

        Those that wait as large ones take no turn from others. Raises as WorkQueue.turn.
        """
        if path in _PROBES:
            yield
            return
        predicts = path in _PREDICTIONS or path.startswith("/scheduler/") or path.endswith("/plan")
        queue, large = (self.predicting, self._predicting_large) if predicts else (self._storing, self._storing_large)
        is_large = size > LARGE_BYTES or any(name in media.lower() for name in _FILES)
        async with large.turn(left) if is_large else nullcontext(), queue.turn(left):
            yield
