"""The snapshot that an API process serves from: one immutable engine, replaced when the database's revision changes.

Requests in flight finish on the engine they started with. While the database is unreachable, or an artefact is refused,
the last good engine keeps answering, and `health` reports the problem.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sqlalchemy import Connection

from app.engine.engine import Engine
from app.engine.gpu_rows import Snapshot
from app.errors import GpucastError, Unavailable
from app.runtime.allocator_trim import trim_allocator
from app.store import keys, revision
from app.store.keys import Key
from app.store.session import Database

log = logging.getLogger(__name__)

ABSENT_RETRY_S = 5.0


@dataclass(frozen=True, slots=True)
class Health:
    """Current problems. An empty `database` and no `artifacts` mean healthy."""

    database: str = ""
    artifacts: tuple[str, ...] = ()


# Builds the engine of a database, given the engine before; also returns one message per refused version.
Assemble = Callable[[Connection, Engine | None], tuple[Engine, tuple[str, ...]]]


class SnapshotHolder:
    """The current snapshot, and the thread that keeps it current.

    `assemble` builds its engine; `warm` prepares a snapshot before it serves.
    """

    def __init__(
        self,
        database: Database,
        assemble: Assemble,
        warm: Callable[[Snapshot], None],
        *,
        poll_s: float,
        ensure_database: Callable[[], None],
    ) -> None:
        self._database = database
        self._assemble = assemble
        self._warm = warm
        self._poll_s = poll_s
        self._ensure_database = ensure_database
        self._loading = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._health = Health()
        self._snapshot = self._load()

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot to answer from; keep a reference for the length of a request."""
        return self._snapshot

    @property
    def engine(self) -> Engine:
        """The engine of the current snapshot."""
        return self._snapshot.engine

    @property
    def keys(self) -> Mapping[bytes, Key]:
        """Active API keys by their SHA-256."""
        return self._keys

    @property
    def health(self) -> Health:
        """Health as of the last poll."""
        return self._health

    def refresh(self) -> bool:
        """Poll now; replace the snapshot and return True if the revision moved. Raises Unavailable without database.

        While the database hangs, it does so at once instead of waiting for the poll in progress.
        A version whose artefact was missing is looked for again every `ABSENT_RETRY_S` seconds.
        """
        if self._database.hangs:
            raise Unavailable(self._health.database or "The database hangs.")
        with self._loading:
            with self._database.begin() as connection:
                moved = revision.current(connection) != self._snapshot.engine.revision
            if moved or self._absent_is_due():
                self._snapshot = self._load()
            self._health = Health("", self._health.artifacts)
            return moved

    def _absent_is_due(self) -> bool:
        absent = any(one.absent for one in self._snapshot.engine.refused)
        return absent and time.monotonic() - self._loaded_at > ABSENT_RETRY_S

    def start(self) -> None:
        """Poll every `poll_s` seconds from now on."""
        self._thread = threading.Thread(target=self._watch, name="snapshot", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop polling."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(self._poll_s):
            try:
                self.refresh()
            except Unavailable as error:
                self._lost(error)
            except GpucastError as error:
                log.error("the catalogue could not be loaded, the last good one keeps serving: %s", error.detail)
            except Exception:
                log.exception("the catalogue could not be loaded, the last good one keeps serving")

    def _lost(self, error: Unavailable) -> None:
        if not self._health.database:
            log.warning("serving from memory: %s", error.detail)
        self._health = Health(error.detail, self._health.artifacts)
        try:
            self._ensure_database()
        except (GpucastError, OSError) as failure:
            log.warning("the embedded database does not start: %s", failure)

    def _load(self) -> Snapshot:
        self._loaded_at = time.monotonic()
        last = self._snapshot.engine if hasattr(self, "_snapshot") else None
        with self._database.begin(long=True) as connection:
            self._keys = keys.active(
                connection
            )  # first, so that a key revoked meanwhile is dropped even if an artefact is refused
            engine, refused = self._assemble(connection, last)
        for problem in refused:
            log.error("%s", problem)
        self._health = Health("", refused)
        snapshot = Snapshot.of(engine)
        self._warm(snapshot)
        trim_allocator()  # unpacked artefacts and the rows read leave free memory behind
        return snapshot
