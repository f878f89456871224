"""The snapshot follows the database."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Connection

from app.bootstrap.assemble import assemble
from app.config import Settings
from app.engine.corrections import Corrected
from app.engine.engine import Engine
from app.engine.measured_operators import with_added
from app.engine.power import PowerModel
from app.engine.snapshot_holder import SnapshotHolder
from app.engine.versions import Stores
from app.store import gpus, operators, revision
from app.store.operators import Added, Sent
from app.store.session import Database
from tests.busy_machine import until
from tests.unit.engine.test_measurement_tables import linear
from tests.unit.services.test_store_uploads import SPEC, checked

LONG_S = 60.0


class NoCorrections:
    """Corrects nothing, as where nothing was measured."""

    def __call__(self, engine: Engine) -> Corrected:
        return Corrected(engine.revision, {}, PowerModel(), ())

    def rest(self) -> None: ...

    def stop(self) -> None: ...


class Assembling:
    """Assembles an engine without predictors. From the second on, it waits until it is let go."""

    def __init__(self, settings: Settings) -> None:
        self._stores = Stores.of(settings)
        self.begun, self.go = threading.Event(), threading.Event()

    def __call__(self, connection: Connection, last: Engine | None) -> Engine:
        engine = assemble(self._stores, connection, last, only=())
        if last is not None:
            self.begun.set()
            assert self.go.wait(LONG_S)
        return engine


class Counted:
    """A lock that counts who asked for it."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self.asked = 0

    def __enter__(self) -> None:
        self.asked += 1
        self._lock.acquire()

    def __exit__(self, *about: object) -> None:
        self._lock.release()


@pytest.fixture(scope="module", autouse=True)
def gpu(database: Database) -> None:
    with database.begin() as connection:
        gpus.insert_spec(connection, SPEC, "user")


@pytest.fixture
def assembling(settings: Settings) -> Assembling:
    return Assembling(settings)


@pytest.fixture
def holder(database: Database, assembling: Assembling) -> SnapshotHolder:
    """A snapshot that nothing polls but its callers."""
    made = SnapshotHolder(
        database, assembling, NoCorrections(), lambda _: None, poll_s=LONG_S, ensure_database=lambda: None
    )
    return made


def change(database: Database) -> int:
    with database.begin() as connection:
        revision.lock(connection)
        return revision.bump(connection, "measurements")


def test_callers_that_wait_for_a_poll_share_the_next_and_see_what_was_stored_before_they_asked(
    database: Database, holder: SnapshotHolder, assembling: Assembling
) -> None:
    before = holder._polls_begun
    loading = Counted(holder._loading)
    holder._loading = loading  # type: ignore[assignment]  # only entered and left
    change(database)
    with ThreadPoolExecutor(6) as pool:
        first = pool.submit(holder.refresh)
        assert assembling.begun.wait(LONG_S)
        last = change(database)  # the poll in progress does not see it
        others = [pool.submit(holder.refresh) for _ in range(5)]
        until(lambda: loading.asked == 6)
        assembling.go.set()
        assert first.result()
        assert all(each.result() for each in others)
    assert holder.engine.revision == last
    assert holder._polls_begun == before + 2


def test_a_poll_says_whether_anything_changed(
    database: Database, holder: SnapshotHolder, assembling: Assembling
) -> None:
    assembling.go.set()
    assert not holder.refresh()
    change(database)
    assert holder.refresh()
    assert not holder.refresh()


def test_added_rows_are_put_in_place_where_nothing_else_has_changed(
    database: Database, holder: SnapshotHolder, assembling: Assembling
) -> None:
    assembling.go.set()
    now = change(database)
    holder.add(Added(now, ()))
    assert holder.engine.revision == now
    assert not assembling.begun.is_set()
    change(database)
    later = change(database)
    holder.add(Added(later, ()))  # the change before it was not read
    assert holder.engine.revision == now
    assert not holder.refresh(later)  # which has its rows
    assert holder.refresh(later + 1)
    assert holder.engine.revision == later
    holder.add(Added(later, ()))
    assert holder.engine.revision == later


def test_a_snapshot_that_is_new_enough_is_not_polled(
    database: Database, holder: SnapshotHolder, assembling: Assembling
) -> None:
    assembling.go.set()
    change(database)
    assert not holder.refresh(holder.engine.revision)
    assert not assembling.begun.is_set()


def test_rows_are_put_in_place_while_a_poll_reads_others_and_stay_once(
    database: Database, holder: SnapshotHolder, assembling: Assembling
) -> None:
    source = "while a poll reads"
    before = holder.engine.operators.counts.get(SPEC.id, 0)
    now = change(database)
    with ThreadPoolExecutor(1) as pool:
        polling = pool.submit(holder.refresh)
        assert assembling.begun.wait(LONG_S)
        first, second = stored(database, 3, source), stored(database, 2, source)
        for each in (first, second):
            holder.add(each)
            assert not holder.refresh(each.revision)  # its caller is answered at once
        assert holder.engine.operators.counts[SPEC.id] == before + 5
        assert not polling.done()
        assembling.go.set()
        polling.result()
    assert first.revision == now + 1
    assert holder.engine.revision == second.revision
    assert holder.engine.operators.counts[SPEC.id] == before + 5
    change(database)
    holder.refresh()
    assert holder.engine.operators.counts[SPEC.id] == before + 5


def test_rows_that_follow_an_unread_change_are_read_once_with_it(
    database: Database, holder: SnapshotHolder, assembling: Assembling
) -> None:
    assembling.go.set()
    before = holder.engine.operators.counts.get(SPEC.id, 0)
    change(database)
    added = stored(database, 4, "after an unread change")
    holder.add(added)
    assert holder.engine.operators.counts[SPEC.id] == before + 4
    assert holder.engine.revision < added.revision
    assert holder.refresh()
    assert holder.engine.revision == added.revision
    assert holder.engine.operators.counts[SPEC.id] == before + 4


def test_rows_that_came_while_a_poll_read_are_put_on_at_once(
    database: Database, holder: SnapshotHolder, assembling: Assembling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time copies the index; other uploads waited seconds for fifty times after a million rows."""
    change(database)
    with ThreadPoolExecutor(1) as pool:
        polling = pool.submit(holder.refresh)
        assert assembling.begun.wait(LONG_S)
        added = [stored(database, 1, f"{k} of several") for k in range(5)]
        for each in added:
            holder.add(each)
        revisions = list[int]()

        def recorded(engine: Engine, more: Added) -> Engine:
            revisions.append(more.revision)
            return with_added(engine, more)

        monkeypatch.setattr("app.engine.snapshot_holder.with_added", recorded)
        assembling.go.set()
        polling.result()
    assert revisions == [added[-1].revision] == [holder.engine.revision]


def stored(database: Database, rows: int, source: str) -> Added:
    """New rows of a GPU, as they are announced."""
    upload = checked(*(linear(int(time.time_ns() % 1e6) + k, 9.0, source=source) for k in range(rows)))
    assert upload.operators is not None
    with database.begin() as connection:
        added = operators.insert(connection, [Sent(block, None) for block in upload.operators.blocks]).added
    assert added is not None
    return added
