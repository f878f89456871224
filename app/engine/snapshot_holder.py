"""The snapshot that an API process serves from: one immutable engine, replaced when the database's revision changes.

Requests in flight finish on the engine they started with. While the database is unreachable, or an artefact is refused,
the last good engine keeps answering, and `health` reports the problem. Measured rows answer for themselves as soon as
they are read; the corrections of other predictions by them are fitted meanwhile and follow within seconds.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from sqlalchemy import Connection

from app.coefficients import Coefficients
from app.engine.corrections import Corrected, amended
from app.engine.engine import Engine
from app.engine.measured_operators import with_added
from app.engine.snapshot import Snapshot
from app.errors import GpucastError, Unavailable
from app.runtime.allocator_trim import trim_allocator
from app.store import keys, revision
from app.store.files import release_pages
from app.store.keys import Key
from app.store.operators import Added
from app.store.session import Database

log = logging.getLogger(__name__)

ABSENT_RETRY_S = 5.0
# Corrections are fitted once nothing has changed for QUIET_S, at the latest LATEST_S after the first change.
QUIET_S, LATEST_S = 0.3, 5.0
# After a failure, and without anything to fit before the process that fits is ended.
RETRY_S, IDLE_S = 2.0, 60.0
# A stop waits so long for a thread.
STOP_S = Coefficients("service").number("stop_wait_s")


@dataclass(frozen=True, slots=True)
class Health:
    """Current problems. An empty `database` and no `artifacts` mean healthy."""

    database: str = ""
    artifacts: tuple[str, ...] = ()
    corrections: tuple[str, ...] = ()


# Builds the engine of the database, in a transaction of one state, given the engine before.
Assemble = Callable[[Connection, Engine | None], Engine]


class Correct(Protocol):
    """Fits the corrections of engines."""

    def __call__(self, engine: Engine) -> Corrected:
        """Return what corrects an engine; takes seconds."""
        ...

    def rest(self) -> None:
        """Free what is held between calls."""
        ...

    def stop(self) -> None:
        """End a call in progress, which then raises; no other follows."""
        ...


class SnapshotHolder:
    """The current snapshot, and the threads that keep it current.

    `assemble` builds its engine, `correct` fits its corrections, `warm` prepares a snapshot before it serves.
    """

    def __init__(
        self,
        database: Database,
        assemble: Assemble,
        correct: Correct,
        warm: Callable[[Snapshot], None],
        *,
        poll_s: float,
        ensure_database: Callable[[], None],
    ) -> None:
        self._database = database
        self._assemble = assemble
        self._correct = correct
        self._warm = warm
        self._poll_s = poll_s
        self._ensure_database = ensure_database
        self._loading = threading.Lock()
        # Of the engine, `_read`, that a poll starts from, and of `_added`, rows that were put on it, by revision.
        self._changing = threading.Lock()
        self._added: list[Added] = []
        self._stop = threading.Event()
        self._moved = threading.Event()
        self._threads: list[threading.Thread] = []
        self._health = Health()
        self._keys_at: int | None = None
        self._polls_begun = self._polled = 0  # numbers of the last poll that began, and of the last that succeeded
        with database.begin(long=True, one_state=True) as connection:
            self._look_at_keys(connection)
            engine = self._loaded(connection, None)
        self._snapshot = self._prepared(self._first(engine), None)
        self._read = self._snapshot.engine

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

    def refresh(self, since: int | None = None) -> bool:
        """Poll now; replace the snapshot and return True if the revision moved. Raises Unavailable without database.

        Does nothing if the snapshot is of the revision `since` or a later one, or has its rows.

        While the database hangs, it does so at once instead of waiting for the poll in progress. Of callers that wait
        for that poll, the first makes the next one, and it serves all of them.
        """
        begun, before = self._polls_begun, self.engine.revision
        if since is not None and (before >= since or any(each.revision == since for each in self._added)):
            return False
        if self._database.hangs:
            raise Unavailable(self._health.database or "The database hangs.")
        with self._loading:
            if self._polled <= begun:
                self._poll()
            return self.engine.revision != before

    def add(self, added: Added) -> None:
        """Put rows in place that this process has stored, unless their GPU is not read yet.

        A poll would read them: it takes longer, and others wait for it. One that reads a million rows goes on
        meanwhile, and what it has read gets them too.
        """
        with self._changing:
            own = {item.gpu_id for block, _ in added.parts for item in block.contexts}
            if added.revision > self.engine.revision and own.issubset(self.engine.gpus.ids):
                self._added.append(added)
                self._snapshot = Snapshot(_with(self.engine, [added]), self._snapshot.row_of)
                self._moved.set()

    def _poll(self) -> None:
        """Load what changed. A version whose artefact was missing is looked for again every `ABSENT_RETRY_S` s."""
        self._polls_begun = poll = self._polls_begun + 1
        with self._changing:
            last = self._snapshot
            if not self._added or self._added[-1].revision == last.engine.revision:
                self._read, self._added = last.engine, []
            before = engine = self._read
        with self._database.begin(long=True, one_state=True) as connection:
            if self._look_at_keys(connection) != engine.revision or self._absent_is_due():
                engine = self._loaded(connection, engine)
        if engine is not before:
            prepared = self._prepared(engine, last)
            with self._changing:
                self._read, self._snapshot = engine, self._with_rest(prepared)
        self._health = replace(self._health, database="")
        if self.engine.corrected < self.engine.revision:
            self._moved.set()
        self._polled = poll

    def _with_rest(self, snapshot: Snapshot) -> Snapshot:
        """Return a snapshot that was read with the rows that were added after its revision."""
        self._added = [each for each in self._added if each.revision > snapshot.engine.revision]
        return Snapshot(_with(snapshot.engine, self._added), snapshot.row_of) if self._added else snapshot

    def _absent_is_due(self) -> bool:
        absent = any(one.absent for one in self.engine.refused)
        return absent and time.monotonic() - self._loaded_at > ABSENT_RETRY_S

    def start(self) -> None:
        """Poll every `poll_s` seconds from now on, and fit corrections."""
        for name, task in (("snapshot", self._watch), ("corrections", self._keep_correcting)):
            thread = threading.Thread(target=task, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Stop polling and fitting; a thread that waits for the database ends with the process."""
        self._stop.set()
        self._moved.set()
        self._correct.stop()
        for thread in self._threads:
            thread.join(STOP_S)

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
        self._health = replace(self._health, database=error.detail)
        try:
            self._ensure_database()
        except (GpucastError, OSError) as failure:
            log.warning("the embedded database does not start: %s", failure)

    def _look_at_keys(self, connection: Connection) -> int:
        """Load the keys if they changed, before anything that may fail; return the revision."""
        now, changed = revision.changed(connection, self._keys_at)
        if "keys" in changed:
            self._keys: Mapping[bytes, Key] = keys.active(connection)
        self._keys_at = now
        return now

    def _loaded(self, connection: Connection, last: Engine | None) -> Engine:
        self._loaded_at = time.monotonic()
        engine = self._assemble(connection, last)
        for problem in engine.messages if last is None else set(engine.messages) - set(last.messages):
            log.error("%s", problem)
        self._health = replace(self._health, artifacts=engine.messages)
        return engine

    def _first(self, engine: Engine) -> Engine:
        """Return the engine of a start, corrected if that succeeds: if not, it is tried again beside the requests."""
        try:
            return amended(engine, self._corrected(engine))
        except Exception:
            log.exception("the start goes on without corrections by measured rows")
            self._moved.set()
            return engine

    def _prepared(self, engine: Engine, last: Snapshot | None) -> Snapshot:
        """Return the snapshot of an engine, warmed up if it differs from `last` in more than measured rows."""
        if last and last.engine.gpus is engine.gpus and _predictors(last.engine) == _predictors(engine):
            return Snapshot(engine, last.row_of)
        snapshot = Snapshot.of(engine)
        self._warm(snapshot)
        trim_allocator()  # unpacked artefacts and the rows read leave free memory behind
        release_pages()  # the trial touched every model; requests ask few
        return snapshot

    def _keep_correcting(self) -> None:
        while not self._stop.is_set():
            if not self._moved.wait(IDLE_S):
                self._correct.rest()
                continue
            self._settle()
            self._moved.clear()
            try:
                self._correct_now()
            except (Unavailable, OSError, EOFError) as error:
                if not self._stop.wait(RETRY_S):
                    log.warning("corrections by new measurements are fitted again: %r", error)
                    self._moved.set()
            except Exception:
                log.exception("new measurements correct no predictions until others come")

    def _settle(self) -> None:
        """Wait until nothing changes, so that rows sent one by one are fitted together."""
        latest = time.monotonic() + LATEST_S
        seen = -1
        while seen != self.engine.revision and time.monotonic() < latest:
            seen = self.engine.revision
            self._stop.wait(QUIET_S)

    def _correct_now(self) -> None:
        corrected = self.engine
        corrections = self._corrected(corrected)
        if self.engine.gpus is not corrected.gpus:  # what the corrections are prepared for: nobody waits for it below
            self._warm(Snapshot.of(amended(self.engine, corrections)))
        with self._loading, self._changing:
            engine = amended(self.engine, corrections)
            self._read = amended(self._read, corrections) if self._added else engine
            self._snapshot = Snapshot(engine, self._snapshot.row_of)
            if engine.corrected < engine.revision:
                self._moved.set()

    def _corrected(self, engine: Engine) -> Corrected:
        corrections = self._correct(engine)
        for problem in corrections.problems:
            log.error("%s", problem)
        self._health = replace(self._health, corrections=corrections.problems)
        return corrections


def _with(engine: Engine, added: Sequence[Added]) -> Engine:
    """Return an engine with added rows; it is of the revision of the last ones before which it lacks nothing.

    All are put on at once: each time copies the index, which takes 70 ms with a million rows, and uploads wait for it.
    """
    now = engine.revision
    for each in added:
        now = each.revision if each.revision == now + 1 else now
    parts = tuple(part for each in added for part in each.parts)
    return with_added(engine, Added(now, parts))


def _predictors(engine: Engine) -> dict[tuple[str, str], int]:
    return {key: id(item.predictor) for key, item in engine.served.items()}
