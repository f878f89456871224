"""One call for all who ask for its result at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from starlette.concurrency import run_in_threadpool

T = TypeVar("T")


class SharedCall(Generic[T]):
    """Calls a function in a thread, once for all callers that come before it returns: many cost as much as one."""

    def __init__(self) -> None:
        self._running: asyncio.Task[T] | None = None

    async def result(self, function: Callable[[], T]) -> T:
        """Return the result of the call in progress, or of a new one."""
        if self._running is None or self._running.done():
            self._running = asyncio.get_running_loop().create_task(run_in_threadpool(function))
        return await asyncio.shield(self._running)
