"""Concurrent changes: each waits for the one before, without deadlock."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import date
from typing import Any

import pytest
from sqlalchemy import Connection

from app.errors import Conflict
from app.services.measurements.check_upload import check
from app.services.measurements.store_uploads import save
from app.store import gpus, measurements, versions
from app.store.gpus import Price
from app.store.session import Database
from app.store.uploads import Filters
from app.tables.catalog import Catalog
from app.tables.complete import complete
from app.wire.measurement_form import Objects
from tests.unit.engine.test_measurement_tables import linear
from tests.unit.services.test_ingest import ROW, SMALL

Change = Callable[[Connection], object]
AHEAD_S = 0.3
OTHER = SMALL | {"id": "other", "name": "Other GPU", "aliases": []}


def upload(*rows: dict[str, Any]) -> Change:
    """Rows with the GPUs that they bring along."""

    def saved(connection: Connection) -> int:
        return save(connection, check(Catalog(gpus.load_specs(connection)), Objects.of(rows)))

    return saved


def kernel(latency_ms: float, gpu: Any = SMALL) -> dict[str, Any]:
    return ROW | {"gpu": gpu, "latency_ms": latency_ms}


def revised(connection: Connection) -> None:
    gpus.update_spec(connection, replace(gpus.get_spec(connection, "titan-v"), note="seen here"))


def priced(usd: float) -> Change:
    row = Price(gpu_id="l40s", usd_per_hour=usd, source="a list", dated=date(2026, 1, 1))
    return lambda connection: gpus.insert_prices(connection, [row])


def removed(connection: Connection) -> None:
    measurements.remove(connection, Filters(source="bench"))


@pytest.mark.parametrize(
    ("first", "second", "other"),
    [
        (upload(kernel(2.0)), upload(linear(4, 9.0, gpu=SMALL)), upload(linear(5, 9.0, gpu=SMALL), kernel(3.0))),
        (upload(kernel(4.0)), upload(kernel(5.0)), upload(kernel(5.0))),
        (upload(kernel(6.0)), upload(kernel(7.0, OTHER)), upload(kernel(8.0, OTHER))),
        (upload(kernel(9.0)), revised, revised),
        (upload(kernel(10.0)), removed, removed),
        (priced(1.0), priced(2.0), priced(2.0)),
    ],
    ids=["operators", "rows", "newcomers", "a GPU", "removals", "prices"],
)
def test_concurrent_changes_do_not_deadlock(database: Database, first: Change, second: Change, other: Change) -> None:
    def apart() -> None:
        with database.begin() as connection:
            other(connection)

    with ThreadPoolExecutor(1) as pool:
        with database.begin() as connection:
            first(connection)
            coming = pool.submit(apart)
            time.sleep(AHEAD_S)
            second(connection)
        coming.result()


def test_measurements_of_a_gpu_deleted_meanwhile_are_rejected(database: Database) -> None:
    spec = complete(SMALL | {"id": "passing", "name": "Passing GPU", "aliases": []})
    with database.begin() as connection:
        gpus.insert_spec(connection, spec, "user")
        checked = [
            check(Catalog([spec]), Objects.of([row | {"gpu": spec.id}])) for row in (kernel(2.0), linear(4, 9.0))
        ]
        gpus.delete_spec(connection, spec.id)
    for found in checked:
        with pytest.raises(Conflict, match="passing was removed"), database.begin() as connection:
            save(connection, found)
    with database.begin() as connection:
        assert not [key for key in measurements.counts(connection) if key[1] == "passing"]


def test_a_version_is_published_while_another_is_rolled_back(database: Database) -> None:
    def published(connection: Connection) -> versions.Version:
        about = {"artifact_sha256": "0" * 64, "training_set_sha256": "0" * 64, "card": {}}
        made = versions.add(connection, predictor="forest", gpu_id="titan-v", **about)
        return versions.serve(connection, made.id)

    def apart() -> versions.Version:
        with database.begin() as connection:
            return published(connection)

    apart(), apart()
    with ThreadPoolExecutor(1) as pool:
        with database.begin() as connection:
            versions.rollback(connection, "forest", "titan-v")
            coming = pool.submit(apart)
            time.sleep(AHEAD_S)
        newest = coming.result()
    with database.begin() as connection:
        assert [version.id for version in versions.served(connection)] == [newest.id]
