"""Stop the work of a request whose caller left, or whose time is over. A thread cannot be stopped: it looks here."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Self

from app.errors import Cancelled


class Cancellation:
    """Whether the work of one request should stop: set on the event loop, read by the thread that works for it."""

    __slots__ = ("cancelled",)

    def __init__(self) -> None:
        self.cancelled = False

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
