"""Uploads that wait at the same time are stored together, each with its own result."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import psycopg
import pytest
import sqlalchemy as sa

from app.errors import Conflict, Unavailable
from app.services.measurements.check_upload import Checked, check
from app.services.measurements.doubts import Doubts, DriftSample
from app.services.measurements.store_uploads import Stored, ToStore, store_upload
from app.store import gpus, revision, uploads
from app.store.operator_blocks import identities
from app.store.operators import Added
from app.store.session import Database
from app.tables.catalog import Catalog
from app.tables.complete import complete
from app.wire.measurement_form import Objects
from tests.kernels_data import SAXPY
from tests.unit.engine.test_measurement_tables import linear
from tests.unit.services.test_ingest import SMALL

SPEC = complete(SMALL)


@pytest.fixture(scope="module", autouse=True)
def gpu(database: Database) -> None:
    with database.begin() as connection:
        gpus.insert_spec(connection, SPEC, "user")


def checked(*rows: dict[str, Any], gpu: Any = SPEC) -> Checked:
    upload = check(Catalog([gpu]), Objects.of([row | {"gpu": gpu.id} for row in rows]))
    assert not upload.errors
    return upload


def kernel(latency_ms: float) -> dict[str, Any]:
    return {"software": "cuda", "source": "bench", "latency_ms": latency_ms, "workload": SAXPY}


def ready(upload: Checked) -> ToStore:
    """An upload whose operators all differ by a tenth from their predictions."""
    blocks = () if upload.operators is None else upload.operators.blocks
    ids = np.concatenate([np.empty((0, 16), np.uint8), *map(identities, blocks)])
    sample = DriftSample((), ids, np.full(len(ids), 0.1), np.ones(len(ids), dtype=np.bool_))
    return ToStore(upload, Doubts({}, tuple((np.empty(0, np.intp), np.empty(0)) for _ in blocks)), sample, 7, False)


def store(database: Database, upload: ToStore) -> Stored:
    return store_upload(database, upload, lambda _: None)


def together(
    database: Database, *waiting: ToStore, announce: Callable[[Added], None] = lambda _: None
) -> list[Future[Stored]]:
    """Results of uploads that came one by one while another was being stored."""
    with ThreadPoolExecutor(len(waiting) + 1) as pool:
        with database.begin() as connection:
            revision.lock(connection)
            first = pool.submit(store, database, ready(checked(linear(1, 9.0))))
            while database._writing._turn.acquire(blocking=False):  # it has begun
                database._writing._turn.release()
                time.sleep(0.001)
            results = []
            for k, upload in enumerate(waiting):
                results.append(pool.submit(store_upload, database, upload, announce))
                while len(database._writing._queue) <= k:
                    time.sleep(0.001)
        first.result()
    return results


def transactions(database: Database, upload_ids: list[int | None]) -> int:
    """In how many transactions uploads were recorded."""
    with database.begin() as connection:
        statement = sa.text("SELECT count(DISTINCT xmin::text) FROM uploads WHERE id = ANY(:ids)")
        return int(connection.execute(statement, {"ids": upload_ids}).scalar_one())


def test_uploads_that_wait_are_stored_in_one_transaction_with_ids_of_their_own(database: Database) -> None:
    parts = [checked(linear(2, 9.0), kernel(2.0)), checked(linear(3, 9.0), linear(4, 9.0)), checked(kernel(3.0))]
    results = [each.result() for each in together(database, *map(ready, parts))]
    assert [each.inserted for each in results] == [2, 2, 1]
    ids = [each.upload_id for each in results]
    assert len({*ids}) == 3
    assert transactions(database, ids) == 1
    with database.begin() as connection:
        rows = {each.id: (each.rows, each.key_id) for each in uploads.listed(connection)}
    assert [rows[upload_id or 0] for upload_id in ids] == [(2, 7), (2, 7), (1, 7)]


def test_a_row_of_two_uploads_is_new_in_the_first_of_them(database: Database) -> None:
    same, other = linear(12, 9.0), linear(13, 9.0)
    results = [each.result() for each in together(database, ready(checked(same)), ready(checked(same, other)))]
    assert [each.inserted for each in results] == [1, 1]
    again = store(database, ready(checked(same)))
    assert (again.inserted, again.upload_id, again.drift) == (0, None, None)
    assert results[0].drift is not None
    assert results[0].drift.rows == 1


def test_an_upload_of_a_removed_gpu_is_refused_and_the_others_are_stored(database: Database) -> None:
    gone = complete(SMALL | {"id": "gone", "name": "Gone GPU", "aliases": []})
    parts = [checked(linear(22, 9.0)), replace(checked(linear(23, 9.0), gpu=gone), newcomers=()), checked(kernel(4.0))]
    first, refused, last = together(database, *map(ready, parts))
    assert (first.result().inserted, last.result().inserted) == (1, 1)
    assert transactions(database, [first.result().upload_id, last.result().upload_id]) == 1
    with pytest.raises(Conflict, match="gone was removed"):
        refused.result()


def test_an_upload_that_the_database_refuses_fails_alone(database: Database) -> None:
    whole = checked(kernel(5.0))
    wrong = replace(whole, rows=(replace(whole.rows[0], latency_s=-1.0),))
    first, refused, last = together(
        database, ready(checked(linear(32, 9.0))), ready(wrong), ready(checked(kernel(6.0)))
    )
    assert (first.result().inserted, last.result().inserted) == (1, 1)
    with pytest.raises(psycopg.IntegrityError):
        refused.result()


def test_a_dry_run_among_others_stores_nothing(database: Database) -> None:
    dry = ready(checked(linear(42, 9.0)))._replace(dry_run=True)
    parts = [ready(checked(kernel(7.0))), dry, ready(checked(kernel(8.0)))]
    results = [each.result() for each in together(database, *parts)]
    assert [each.inserted for each in results] == [1, 1, 1]
    assert results[1].upload_id is None
    assert store(database, ready(checked(linear(42, 9.0)))).inserted == 1


def test_new_operators_of_a_transaction_are_announced_once_it_is_committed(database: Database) -> None:
    announced: list[tuple[int, int, int]] = []

    def announce(added: Added) -> None:
        with database.begin() as connection:
            announced.append((sum(len(ids) for _, ids in added.parts), added.revision, revision.current(connection)))

    same = linear(52, 9.0)
    parts = [ready(checked(same)), ready(checked(same, linear(53, 9.0))), ready(checked(linear(54, 9.0)))]
    results = [each.result() for each in together(database, *parts, announce=announce)]
    ((rows, made, now),) = announced
    assert (rows, made) == (3, now)
    assert {each.revision for each in results} == {made}
    dry = ready(checked(linear(55, 9.0)))._replace(dry_run=True)
    assert store_upload(database, dry, announce).inserted == 1
    assert store_upload(database, ready(checked(same)), announce).revision is None
    assert len(announced) == 1


@pytest.fixture
def lost_at_commit(database: Database) -> Iterator[None]:
    """The server ends a connection that commits an upload of key 9."""
    lose = "BEGIN IF NEW.key_id = 9 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF; RETURN NULL; END"
    with database.begin() as connection:
        connection.execute(sa.text(f"CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS '{lose}'"))
        connection.execute(
            sa.text(
                "CREATE CONSTRAINT TRIGGER lose AFTER INSERT ON uploads DEFERRABLE INITIALLY DEFERRED"
                " FOR EACH ROW EXECUTE FUNCTION lose()"
            )
        )
    yield
    with database.begin() as connection:
        connection.execute(sa.text("DROP FUNCTION lose CASCADE"))


@pytest.mark.usefixtures("lost_at_commit")
def test_a_commit_that_fails_is_reported_to_all_of_its_uploads_and_stores_nothing(database: Database) -> None:
    parts = [linear(62, 9.0), linear(63, 9.0), kernel(9.5)]
    waiting = [ready(checked(row)) for row in parts]
    announced: list[Added] = []
    waiting[1] = waiting[1]._replace(key_id=9)
    for each in together(database, *waiting, announce=announced.append):
        with pytest.raises(Unavailable):
            each.result()
    assert announced == []
    assert [store(database, ready(checked(row))).inserted for row in parts] == [1, 1, 1]
