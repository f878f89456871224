"""One call for all that wait while another runs: group commit, as databases do it (DeWitt et al. 1984)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")
# Handles items together; an item that cannot be handled gets its error in place of a result.
Handle = Callable[[Sequence[T]], Sequence[R | Exception]]


class _Waiting(Generic[T, R]):
    """An item, and its result or error once it has one."""

    __slots__ = ("item", "results")

    def __init__(self, item: T) -> None:
        self.item = item
        self.results: list[R | Exception] = []


class GroupCommit(Generic[T, R]):
    """Items of several threads, handled in the order in which they came, by whichever thread has its turn.

    Each thread waits for the result of its own item. A call that fails as a whole fails for all of its items.
    """

    def __init__(self, most: int) -> None:
        self._most = most  # items of one call
        self._queue: list[_Waiting[T, R]] = []
        self._queueing = threading.Lock()
        self._turn = threading.Lock()

    def result(self, item: T, handle: Handle[T, R], timeout_s: float) -> R:
        """Return the result of an item, or raise its error. Raises TimeoutError if its turn does not come in time."""
        mine: _Waiting[T, R] = _Waiting(item)
        with self._queueing:
            self._queue.append(mine)
        deadline = time.monotonic() + timeout_s
        while not mine.results:
            self._wait_for_turn(mine, deadline)
            try:
                if not mine.results:
                    self._handle_next(handle)
            finally:
                self._turn.release()
        (result,) = mine.results
        if isinstance(result, Exception):
            raise result
        return result

    def _wait_for_turn(self, mine: _Waiting[T, R], deadline: float) -> None:
        """Wait for the calls that came first; an item that one of them handles already is waited for to its end."""
        if self._turn.acquire(timeout=max(deadline - time.monotonic(), 0)):
            return
        with self._queueing:
            if mine in self._queue:
                self._queue.remove(mine)
                raise TimeoutError
        self._turn.acquire()

    def _handle_next(self, handle: Handle[T, R]) -> None:
        with self._queueing:
            group, self._queue = self._queue[: self._most], self._queue[self._most :]
        try:
            answered = list(zip(group, handle([each.item for each in group]), strict=True))
        except Exception as error:
            answered = [(each, error) for each in group]
        for each, result in answered:
            each.results.append(result)
