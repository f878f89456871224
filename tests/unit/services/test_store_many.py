"""An upload of many rows is stored whole, once, and beside small ones."""

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from app.errors import Conflict
from app.services.measurements.check_upload import Checked
from app.services.measurements.store_uploads import MOST_ROWS_TOGETHER, Stored
from app.store import gpus, measurements, operator_rows, operators, revision
from app.store.session import Database
from app.store.uploads import Filters
from app.tables.complete import complete
from tests.unit.engine.test_measurement_tables import linear
from tests.unit.services.test_ingest import SMALL
from tests.unit.services.test_store_uploads import checked, kernel, ready, store

MANY = MOST_ROWS_TOGETHER + 1
SPEC = complete(SMALL)
# The row of an upload at which the database stops until the test lets go.
STOP_MS, STOP = 777.0, 4711
SOON_S = 10.0


@pytest.fixture(scope="module", autouse=True)
def gpu(database: Database) -> Iterator[None]:
    """A GPU, and a database that stops in the midst of an upload."""
    wait = f"PERFORM pg_advisory_xact_lock_shared({STOP})"
    stop = f"BEGIN IF NEW.latency_s = {STOP_MS / 1e3} THEN {wait}; END IF; RETURN NULL; END"
    with database.begin() as connection:
        gpus.insert_spec(connection, SPEC, "user")
        connection.execute(sa.text(f"CREATE FUNCTION stop() RETURNS trigger LANGUAGE plpgsql AS '{stop}'"))
        for table in ("operator_measurements", "measurements"):
            trigger = f"CREATE TRIGGER stop AFTER INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION stop()"
            connection.execute(sa.text(trigger))
    yield
    with database.begin() as connection:
        connection.execute(sa.text("DROP FUNCTION stop CASCADE"))


def many(first: int, gpu: object = SPEC) -> Checked:
    """Operators that nobody else stores, of which the database stops at the last."""
    times = [9.0] * (MANY - 1) + [STOP_MS]
    return checked(*(linear(first + k, ms) for k, ms in enumerate(times)), gpu=gpu)


@contextmanager
def stopped(database: Database, pool: ThreadPoolExecutor, upload: Checked) -> Iterator[Future[Stored]]:
    """The result of an upload that is being stored, once it may go on."""
    with database.begin(long=True) as connection:
        connection.execute(sa.text(f"SELECT pg_advisory_xact_lock({STOP})"))
        result = pool.submit(store, database, ready(upload))
        waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = :stop AND NOT granted"
        with database.begin() as other:
            while not other.execute(sa.text(waiting), {"stop": STOP}).scalar_one():
                assert not result.done(), result.result()
                time.sleep(0.01)
        yield result


def loaded(database: Database, since: int | None) -> int:
    """How many operators a process reads that has those of a revision."""
    with database.begin() as connection:
        return sum(len(ids) for _, ids in operator_rows.load(connection, since=since))


def now(database: Database) -> int:
    """The revision."""
    with database.begin() as connection:
        return revision.current(connection)


def test_small_uploads_are_stored_while_a_large_one_is_inserted(database: Database) -> None:
    before, stored = now(database), loaded(database, None)
    with ThreadPoolExecutor() as pool:
        with stopped(database, pool, many(100_000)) as large:
            for k in range(3):
                assert store(database, ready(checked(linear(10 + k, 9.0), kernel(20.0 + k)))).inserted == 2
            meanwhile = now(database)
            assert loaded(database, before) == 3
            assert not large.done()
        assert large.result().inserted == MANY
    assert loaded(database, meanwhile) == MANY  # for a process that has read the small ones
    assert loaded(database, before) == MANY + 3
    assert loaded(database, now(database)) == 0
    assert loaded(database, None) == stored + MANY + 3
    with database.begin() as connection:
        assert operators.counts(connection)[SPEC.id] == stored + MANY + 3
        assert not operators.any_powered(connection, since=meanwhile)
    assert store(database, ready(many(100_000))).inserted == 0


def test_a_row_of_both_is_stored_once_and_others_do_not_wait_for_it(database: Database) -> None:
    with ThreadPoolExecutor() as pool:
        with stopped(database, pool, many(200_000)) as large:
            shared = pool.submit(store, database, ready(checked(linear(200_000, 9.0), linear(30, 9.0))))
            began = time.monotonic()
            for k in range(3):
                assert store(database, ready(checked(linear(40 + k, 9.0)))).inserted == 1
            assert time.monotonic() - began < SOON_S
            assert not shared.done()
        assert (large.result().inserted, shared.result(SOON_S).inserted) == (MANY, 1)


def test_kernels_of_a_large_upload_wait_in_no_ones_way(database: Database) -> None:
    rows = [kernel(2.0 + k / 1e6) for k in range(MANY)] + [kernel(STOP_MS)]
    before = now(database)
    with ThreadPoolExecutor() as pool:
        with stopped(database, pool, checked(*rows)) as large:
            assert store(database, ready(checked(kernel(31.0)))).inserted == 1
        assert large.result().inserted == MANY + 1
    with database.begin() as connection:
        assert revision.changed(connection, before) == (before + 2, frozenset({"measurements"}))


def test_a_gpu_that_is_removed_meanwhile_refuses_the_whole_upload(database: Database) -> None:
    gone = complete(SMALL | {"id": "gone-meanwhile", "name": "Gone Meanwhile", "aliases": []})
    with database.begin() as connection:
        gpus.insert_spec(connection, gone, "user")
    stored = loaded(database, None)
    with ThreadPoolExecutor() as pool:
        with stopped(database, pool, many(300_000, gone)) as large, database.begin() as connection:
            gpus.delete_spec(connection, gone.id)
        with pytest.raises(Conflict, match="gone-meanwhile was removed"):
            large.result()
    assert loaded(database, None) == stored


def test_a_deletion_waits_for_a_large_upload_and_takes_it_too(database: Database) -> None:
    def remove() -> dict[tuple[str, str], int]:
        with database.begin(long=True) as connection:
            return measurements.remove(connection, Filters(kind="operator", name="linear"))

    stored = loaded(database, None)
    with ThreadPoolExecutor() as pool:
        with stopped(database, pool, many(400_000)):
            removed = pool.submit(remove)
            assert store(database, ready(checked(linear(50, 9.0)))).inserted == 1
        assert removed.result().popitem()[1] == stored + MANY + 1
    assert loaded(database, None) == 0


def test_a_dry_run_of_many_rows_stores_nothing(database: Database) -> None:
    before, stored = now(database), loaded(database, None)
    upload = checked(*(linear(500_000 + k, 9.0) for k in range(MANY)))
    assert store(database, ready(upload)._replace(dry_run=True)).inserted == MANY
    assert (now(database), loaded(database, None)) == (before, stored)
