from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

from app.store import measurements, revision
from app.store.measurements import MeasurementRow, identity
from app.store.session import Database
from app.store.uploads import Page

ROW = MeasurementRow(
    gpu_id="titan-v",
    software="cuda-12.4",
    kind="kernel",
    name="matmul_tiled",
    workload={"kind": "kernel", "name": "matmul_tiled", "flops": 2147483648, "bytes": 1.5e22},
    latency_s=0.00091,
    source="test",
    runs=10,
    phases_s=None,
    kernel={"name": "matmul", "grid": [64, 64, 1]},
    measured_at=datetime(2026, 1, 2, 3, 4, tzinfo=UTC),
)


def test_the_same_row_is_stored_once(database: Database) -> None:
    with database.begin() as connection:
        before = revision.current(connection)
        assert measurements.insert(connection, [ROW, ROW]) == 1
        assert measurements.insert(connection, [ROW]) == 0
        assert revision.current(connection) == before + 1
        (stored,) = (row for row in measurements.load(connection, kind="kernel") if row.gpu_id == ROW.gpu_id)
    assert replace(stored, id="", created_at=None) == ROW
    assert stored.id == identity(ROW) == identity(stored)


def test_row_identity_depends_on_values_not_on_spelling() -> None:
    spelled = {"flops": 2147483648.0, "kind": "kernel", "name": "matmul_tiled", "bytes": 15 * 10**21, "size": None}
    elsewhere = ROW.measured_at.astimezone(timezone(timedelta(hours=2))) if ROW.measured_at else None
    assert identity(replace(ROW, workload=spelled, measured_at=elsewhere, runs=20)) == identity(ROW)
    assert identity(replace(ROW, latency_s=0.00092)) != identity(ROW)


def test_pages_are_consecutive(database: Database) -> None:
    rows = [replace(ROW, name="paged", latency_s=k / 1e4) for k in range(1, 26)]
    with database.begin() as connection:
        assert measurements.insert(connection, rows) == 25
        seen: list[str] = []
        wanted = Page(name="paged", gpu="titan-v", limit=10)
        while page := measurements.page(connection, replace(wanted, after=seen[-1] if seen else None)):
            seen += [row.id for row in page]
        assert measurements.counts(connection)["kernel", "titan-v"] >= 25
        assert measurements.page(connection, Page(source="nobody")) == []
    assert sorted(seen) == seen == sorted(identity(row) for row in rows)


def test_training_set_hash_ignores_order() -> None:
    other = replace(ROW, latency_s=1.0)
    assert measurements.training_set_hash([ROW, other]) == measurements.training_set_hash([other, ROW])
    assert measurements.training_set_hash([ROW]) != measurements.training_set_hash([ROW, other])


def test_the_hash_of_what_is_stored(database: Database) -> None:
    with database.begin() as connection:
        assert measurements.stored_set_hash(connection, kind="nothing") == measurements.training_set_hash([])
        measurements.insert(connection, [replace(ROW, name="hashed", latency_s=k / 1e3) for k in range(1, 5)])
        rows = measurements.load(connection, kind="kernel")
        assert measurements.stored_set_hash(connection, kind="kernel") == measurements.training_set_hash(rows)


def test_more_rows_than_one_statement_takes(database: Database) -> None:
    rows = [replace(ROW, name="many", latency_s=k / 1e7) for k in range(1, 25_001)]
    with database.begin() as connection:
        assert measurements.insert(connection, rows) == 25_000
