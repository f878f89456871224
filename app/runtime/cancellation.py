"""Stop the work of a request whose caller left, whose time is over, or that takes too much of it.

A thread cannot be stopped: it looks here.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, copy_context
from typing import Self, TypeVar

from app.errors import Cancelled

T = TypeVar("T")


class Cancellation:
    """Whether the work of one request should stop: set on the event loop, read by the thread that works for it.

    caller  name of who sent it
    spent   work of the request that is counted, in units of whoever counts it
    """

    __slots__ = ("caller", "cancelled", "spent")

    def __init__(self, caller: str) -> None:
        self.caller = caller
        self.cancelled = False
        self.spent = 0

    @classmethod
    def begin(cls, caller: str = "") -> Self:
        """Return a new one, for the current task and the threads that it starts."""
        work = cls(caller)
        _CURRENT.set(work)
        return work


_CURRENT: ContextVar[Cancellation | None] = ContextVar("cancellation", default=None)


def check_cancelled() -> None:
    """Raise Cancelled if nobody waits for this work any more; called between its slices of some milliseconds."""
    if is_cancelled():
        raise Cancelled


def is_cancelled() -> bool:
    """Return whether nobody waits for this work any more."""
    work = _CURRENT.get()
    return work is not None and work.cancelled


def current_caller() -> str:
    """Return the name of who sent the current request; empty without one, such as in a command."""
    work = _CURRENT.get()
    return "" if work is None else work.caller


def shared(work: Callable[[], T]) -> T:
    """Return what `work` returns, which is for other requests too: nobody who leaves ends it."""
    context = copy_context()
    context.run(_CURRENT.set, None)
    return context.run(work)


def spend(amount: int) -> int:
    """Count work of the current request, and return its sum; 0 without a request, such as in a command."""
    work = _CURRENT.get()
    if work is None:
        return 0
    work.spent += amount
    return work.spent
