"""Report whether this process can work: database, queue and model store."""

from __future__ import annotations

import os
from dataclasses import dataclass

from app.bootstrap.runtime import Runtime
from app.engine.snapshot import SnapshotHolder
from app.errors import Unavailable
from app.store import queue


@dataclass(frozen=True, slots=True)
class Part:
    """State of one dependency.

    problem   why no prediction can be trusted here; empty while it can
    degraded  what does not work although predictions do; empty while all does
    notes     warnings
    """

    name: str
    problem: str = ""
    degraded: str = ""
    notes: tuple[str, ...] = ()


def readiness(runtime: Runtime, holder: SnapshotHolder) -> tuple[Part, ...]:
    """Return the state of every dependency, checked now."""
    return (*_database_and_queue(runtime, holder), _store(runtime, holder))


def _database_and_queue(runtime: Runtime, holder: SnapshotHolder) -> tuple[Part, Part]:
    """Return their state. Without them nothing can be stored, while the snapshot goes on answering."""
    if lost := holder.health.database:  # probes must not wait for what the last poll waited for
        return _lost(lost)
    try:
        with runtime.database.begin() as connection:
            queue.check(connection)
            workers = queue.workers_alive(connection, stalled_after_s=runtime.settings.stalled_after_s)
            waiting = queue.waiting(connection)
    except Unavailable as error:
        return _lost(error.detail)
    notes = () if workers or not waiting else (f"{waiting} jobs are waiting and no worker is running",)
    return Part("database"), Part("queue", notes=notes)


def _lost(reason: str) -> tuple[Part, Part]:
    return Part("database", degraded=reason), Part("queue", degraded="The database does not answer.")


def _store(runtime: Runtime, holder: SnapshotHolder) -> Part:
    folder = runtime.settings.models_dir
    present = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    writable = os.access(present, os.W_OK)
    problems = [] if writable else ["the model store folder is not writable"]
    # Another process serves this version, so the answers of this one would differ.
    problems += [str(one) for one in holder.engine.refused if one.absent]
    return Part("store", "; ".join(problems), notes=holder.health.artifacts)
