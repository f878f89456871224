"""Report whether this process can work: database, queue and model store."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from app.bootstrap.runtime import Runtime
from app.config import Settings
from app.engine.snapshot_holder import SnapshotHolder
from app.errors import Unavailable
from app.store import queue

LEAST_FREE_BYTES = 32 * 2**20  # a few artefacts


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
    return Part("database", degraded=_refusing(runtime)), Part("queue", notes=notes)


def _refusing(runtime: Runtime) -> str:
    """Return why the database refuses changes; empty if it takes them."""
    if runtime.database.is_full:
        return "its disk is full: changes are refused"
    return "it is read-only, as after a failover: changes are refused" if runtime.database.is_read_only else ""


def _lost(reason: str) -> tuple[Part, Part]:
    return Part("database", degraded=reason), Part("queue", degraded="The database does not answer.")


def _store(runtime: Runtime, holder: SnapshotHolder) -> Part:
    folder = _present(runtime.settings.models_dir)
    degraded = []
    if not os.access(folder, os.W_OK):
        degraded.append("the model store folder is not writable")
    if store_is_full(runtime.settings):
        degraded.append(f"its disk has less than {LEAST_FREE_BYTES >> 20} MiB left: no version can be trained")
    # Another process serves these versions, so the answers of this one would differ.
    problem = "; ".join(str(one) for one in holder.engine.refused if one.absent)
    return Part("store", problem, "; ".join(degraded), (*holder.health.artifacts, *holder.health.corrections))


def store_is_full(settings: Settings) -> bool:
    """Return whether the disk of the model store has no room for artefacts."""
    return shutil.disk_usage(_present(settings.models_dir)).free < LEAST_FREE_BYTES


def _present(folder: Path) -> Path:
    """Return the folder, or the closest one above it that exists."""
    return next(path for path in (folder, *folder.parents) if path.exists())
