"""Stop the work of a request whose caller left, whose time is over, or that takes too much of it.

A thread cannot be stopped: it looks here.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Self

from app.errors import Cancelled


class Cancellation:
    """Whether the work of one request should stop: set on the event loop, read by the thread that works for it.

    spent  work of the request that is counted, in units of whoever counts it
    """

    __slots__ = ("cancelled", "spent")

    def __init__(self) -> None:
        self.cancelled = False
        self.spent = 0

    @classmethod
    def begin(cls) -> Self:
        """Return a new one, for the current task and the threads that it starts."""
        work = cls()
        _CURRENT.set(work)
        return work


_CURRENT: ContextVar[Cancellation | None] = ContextVar("cancellation", default=None)


def check_cancelled() -> None:
    """Raise Cancelled if nobody waits for this work any more; called between its slices of some milliseconds."""
    work = _CURRENT.get()
    if work is not None and work.cancelled:
        raise Cancelled


def spend(amount: int) -> int:
    """Count work of the current request, and return its sum; 0 without a request, such as in a command."""
    work = _CURRENT.get()
    if work is None:
        return 0
    work.spent += amount
    return work.spent
