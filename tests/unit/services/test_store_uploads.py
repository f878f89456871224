"""Uploads that wait at the same time are stored together, each with its own result."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import psycopg
import pytest
import sqlalchemy as sa

from app.errors import Conflict
from app.services.measurements.check_upload import Checked, check
from app.services.measurements.doubts import Doubts
from app.services.measurements.model_drift import DriftSample
from app.services.measurements.store_uploads import Stored, ToStore, store_upload
from app.store import gpus, revision, uploads
from app.store.operator_blocks import identities
from app.store.session import Database
from app.tables.catalog import Catalog
from app.tables.complete import complete
from app.wire.measurements.upload import Objects
from tests.kernels_data import SAXPY
from tests.unit.engine.test_stored_operators import linear
from tests.unit.services.test_ingest import SMALL

SPEC = complete(SMALL)


@pytest.fixture(scope="module", autouse=True)
def gpu(database: Database) -> None:
    with database.begin() as connection:
        gpus.insert_spec(connection, SPEC, "user")


def checked(*rows: dict[str, Any], gpu: Any = SPEC) -> Checked:
    found = check(Catalog([gpu]), Objects.of([row | {"gpu": gpu.id} for row in rows]))
    assert not found.errors
    return found


def kernel(latency_ms: float) -> dict[str, Any]:
    return {"software": "cuda", "source": "bench", "latency_ms": latency_ms, "workload": SAXPY}


def ready(found: Checked) -> ToStore:
    """An upload whose operators all differ by a tenth from their predictions."""
    blocks = () if found.operators is None else found.operators.blocks
    ids = np.concatenate([np.empty((0, 16), np.uint8), *map(identities, blocks)])
    sample = DriftSample((), ids, np.full(len(ids), 0.1), np.ones(len(ids), dtype=np.bool_))
    return ToStore(found, Doubts({}, tuple((np.empty(0, np.intp), np.empty(0)) for _ in blocks)), sample, 7, False)


def together(database: Database, *waiting: ToStore) -> list[Future[Stored]]:
    """Results of uploads that came one by one while another was being stored."""
    with ThreadPoolExecutor(len(waiting) + 1) as pool:
        with database.begin() as connection:
            revision.lock(connection)
            first = pool.submit(store_upload, database, ready(checked(linear(1, 9.0))))
            while database._writing._turn.acquire(blocking=False):  # it has begun
                database._writing._turn.release()
                time.sleep(0.001)
            found = []
            for k, upload in enumerate(waiting):
                found.append(pool.submit(store_upload, database, upload))
                while len(database._writing._queue) <= k:
                    time.sleep(0.001)
        first.result()
    return found


def transactions(database: Database, upload_ids: list[int | None]) -> int:
    """In how many transactions uploads were recorded."""
    with database.begin() as connection:
        statement = sa.text("SELECT count(DISTINCT xmin::text) FROM uploads WHERE id = ANY(:ids)")
        return int(connection.execute(statement, {"ids": upload_ids}).scalar_one())


def test_uploads_that_wait_are_stored_in_one_transaction_with_ids_of_their_own(database: Database) -> None:
    parts = [checked(linear(2, 9.0), kernel(2.0)), checked(linear(3, 9.0), linear(4, 9.0)), checked(kernel(3.0))]
    found = [each.result() for each in together(database, *map(ready, parts))]
    assert [each.inserted for each in found] == [2, 2, 1]
    ids = [each.upload_id for each in found]
    assert len({*ids}) == 3
    assert transactions(database, ids) == 1
    with database.begin() as connection:
        rows = {each.id: (each.rows, each.key_id) for each in uploads.listed(connection)}
    assert [rows[upload_id or 0] for upload_id in ids] == [(2, 7), (2, 7), (1, 7)]


def test_a_row_of_two_uploads_is_new_in_the_first_of_them(database: Database) -> None:
    same, other = linear(12, 9.0), linear(13, 9.0)
    found = [each.result() for each in together(database, ready(checked(same)), ready(checked(same, other)))]
    assert [each.inserted for each in found] == [1, 1]
    again = store_upload(database, ready(checked(same)))
    assert (again.inserted, again.upload_id, again.drift) == (0, None, None)
    assert found[0].drift is not None
    assert found[0].drift.rows == 1


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
    found = [each.result() for each in together(database, *parts)]
    assert [each.inserted for each in found] == [1, 1, 1]
    assert found[1].upload_id is None
    assert store_upload(database, ready(checked(linear(42, 9.0)))).inserted == 1
