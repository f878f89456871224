"""Answers from the newest snapshot that they need."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from app.engine.gpu_rows import Snapshot
from app.engine.snapshot import SnapshotHolder
from app.errors import NotFound, Unavailable

T = TypeVar("T")


def current(holder: SnapshotHolder, answer: Callable[[Snapshot], T]) -> T:
    """`answer` of the snapshot; once more where it lacks what another process has just added, a GPU say."""
    before = holder.snapshot
    try:
        return answer(before)
    except NotFound:
        if not moved(holder, before):
            raise
    return answer(holder.snapshot)


def moved(holder: SnapshotHolder, before: Snapshot) -> bool:
    """Look into the database; True if the snapshot is another one than `before`, whoever changed it."""
    with suppress(Unavailable):
        holder.refresh()
    return holder.snapshot is not before
