"""Shipped measurements: imported once, by the first start that sees a file."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from app.bootstrap.runtime import open_runtime
from app.config import SEED_MEASUREMENTS, Settings
from app.formats.own import IMPORTERS
from app.services.measurements.importing import import_parts
from app.services.measurements.stored import remove
from app.stacks.release import is_eager
from app.store import measurements
from app.store.session import Database
from app.store.sql_tables import SEED_FILES
from app.store.uploads import Filters

pytestmark = pytest.mark.slow

ROW = {"gpu": "l40s", "software": "pytorch-2.13", "source": "shipped", "outcome": "measured"}
# Shorter operators that a host launches take its time as much as the GPU's.
HOST_BOUND_MS = 0.3
LINEAR = {"kind": "operator", "op": "linear", "n": 64, "k": 64, "dtype": "bf16"}


def write(path: Path, *latencies_ms: float) -> None:
    rows = [ROW | LINEAR | {"m": 64 + k, "latency_ms": latency} for k, latency in enumerate(latencies_ms)]
    pq.write_table(pa.Table.from_pylist(rows), path)


def stored(database: Database) -> int:
    with database.begin() as connection:
        return measurements.counts(connection).get(("operator", "l40s"), 0)


def test_each_shipped_file_is_imported_once(
    settings: Settings, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = dataclasses.replace(settings, seed_measurements_dir=tmp_path)
    write(tmp_path / "l40s.parquet", 1.0, 2.0)

    def start(_: int = 0) -> int:
        with open_runtime(settings) as runtime:
            return stored(runtime.database)

    with ThreadPoolExecutor(3) as pool:
        assert set(pool.map(start, range(3))) == {2}
    with open_runtime(settings) as runtime:
        assert remove(runtime.database, Filters(source="shipped")) == {("operator", "l40s"): 2}
    assert start() == 0
    # A new version ships more of them.
    write(tmp_path / "l40s.parquet", 1.0, 2.0, 3.0)
    assert start() == 3
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    assert start() == 3
    assert "broken.parquet was not imported" in capfd.readouterr().err
    with open_runtime(settings) as runtime, runtime.database.begin() as connection:
        assert sorted(connection.execute(sa.select(SEED_FILES.c.name)).scalars()) == ["l40s.parquet", "l40s.parquet"]


def test_shipped_measurements_are_valid(database: Database) -> None:
    for path in sorted(SEED_MEASUREMENTS.rglob("*.parquet")):
        report = import_parts(database, IMPORTERS["measurements"], path, dry_run=True)
        assert report.inserted > 0
        assert [reason for reason in report.skipped if not reason.startswith("not measured")] == []


def test_rows_of_gpus_to_learn_from_do_not_depend_on_a_host() -> None:
    """Short operators that a virtual machine launched, and networks, are in `host-bound`: its speed drifts."""
    for path in (*SEED_MEASUREMENTS.glob("h*.parquet"), *SEED_MEASUREMENTS.glob("later/h*.parquet")):
        rows = pq.read_table(path).to_pylist()
        assert not [row for row in rows if row["kind"] == "model"]
        assert not [row for row in rows if is_eager(row["software"]) and row["latency_ms"] < HOST_BOUND_MS]
