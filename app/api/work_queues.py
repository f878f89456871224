"""Queues of requests that work in threads: some work, some wait, and others get 503 at once.

What predicts and what needs the database have a queue each, so that predictions go on while the database hangs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from app.errors import Cancelled, Unavailable
from app.runtime.cancellation import check_cancelled

# Threads that work: under Python's lock more do not predict faster, and each delays the event loop by some
# milliseconds. Of the database there are as many as connections; probes have the rest of Starlette's 40.
_PREDICTING, _STORING = 4, 16
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

    def of(self, path: str) -> WorkQueue | None:
        """Return the queue of a route; None of probes."""
        if path in _PROBES:
            return None
        predicts = path in _PREDICTIONS or path.startswith("/scheduler/") or path.endswith("/plan")
        return self.predicting if predicts else self._storing
