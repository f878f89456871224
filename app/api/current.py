"""Answer from the current snapshot, and refresh it if something is missing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from app.engine.gpu_rows import Snapshot
from app.engine.snapshot import SnapshotHolder
from app.errors import GpucastError, NotFound, Unavailable

T = TypeVar("T")


def current(
    holder: SnapshotHolder, answer: Callable[[Snapshot], T], retry_on: tuple[type[GpucastError], ...] = (NotFound,)
) -> T:
    """Return `answer` of the snapshot; retry once after a refresh, since another process may have added a GPU.

    `retry_on`: errors that a change of the catalogue may cause.
    """
    before = holder.snapshot
    try:
        return answer(before)
    except retry_on:
        if not moved(holder, before):
            raise
    return answer(holder.snapshot)


def moved(holder: SnapshotHolder, before: Snapshot) -> bool:
    """Refresh the snapshot; return True if it is no longer `before`, whoever changed it."""
    with suppress(Unavailable):
        holder.refresh()
    return holder.snapshot is not before
