"""`gpucast measurements` on a real database, as a process."""

from __future__ import annotations

import os
import subprocess

import pytest

from app.config import Settings
from app.store import doubtful, measurements, operators, uploads
from app.store.doubtful import DoubtfulRow
from app.store.driver import ask
from app.store.measurements import MeasurementRow
from app.store.session import Database
from app.store.uploads import Page
from tests.forked import run_command

pytestmark = pytest.mark.slow


def _delete(settings: Settings, *words: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    return _run(settings, "delete", *words, typed=typed)


def _run(settings: Settings, *words: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    return run_command("measurements", *words, env=os.environ | settings.environment(), stdin=typed)


def test_deletion_asks_for_confirmation_with_the_row_count(settings: Settings, database: Database) -> None:
    about = {"gpu_id": "titan-v", "software": "cuda", "kind": "kernel", "name": "saxpy", "workload": {"kind": "kernel"}}
    rows = [MeasurementRow(**about, latency_s=k / 1e3, source="test") for k in (1, 2, 3)]  # type: ignore[arg-type]
    with database.begin() as connection:
        measurements.insert(connection, rows)

    def stored() -> int:
        with database.begin() as connection:
            return len(measurements.page(connection, Page(source="test")))

    wanted = ("--gpu", "NVIDIA TITAN V", "--source", "test")
    tried = _delete(settings, *wanted, "--dry-run")
    assert (tried.returncode, tried.stdout.split("\n")[1]) == (0, "3 measurements would be deleted")
    for answer in ("n\n", ""):
        refused = _delete(settings, *wanted, typed=answer)
        assert refused.returncode == 1
        assert "Delete 3 measurements?" in refused.stdout
    assert stored() == 3
    assert "no measurement matches" in _delete(settings, "--source", "nobody", "--yes").stdout
    assert "3 measurements deleted" in _delete(settings, *wanted, typed="y\n").stdout
    assert stored() == 0
    with database.begin() as connection:
        measurements.insert(connection, rows)
    assert "3 measurements deleted" in _delete(settings, "--kind", "kernel", "--yes").stdout
    assert stored() == 0


def test_no_option_deletes_nothing(settings: Settings) -> None:
    refused = _delete(settings, "--yes")
    assert refused.returncode == 1
    assert "at least one" in refused.stderr


def test_doubtful_rows_are_confirmed(settings: Settings, database: Database) -> None:
    workload = {"kind": "operator", "op": "linear", "m": 64, "n": 64, "k": 64, "dtype": "fp32"}
    body = {"gpu": "titan-v", "software": "c", "source": "odd", "workload": workload, "latency_ms": 900.0}
    with database.begin() as connection:
        ((upload_id,),) = ask(connection, uploads.new_ids(1))
        about = {"kind": "operator", "gpu_id": "titan-v", "name": "linear", "software": "c", "source": "odd"}
        row = DoubtfulRow(**about, id="0" * 32, body=body, expected_s=1e-5, upload_id=upload_id)
        doubtful.insert(connection, [row])
        uploads.record(connection, [(upload_id, None, 1, None)])
    assert "1 measurements would be confirmed" in _run(settings, "confirm", "--source", "odd", "--dry-run").stdout
    assert "1 measurements confirmed" in _run(settings, "confirm", "--upload", str(upload_id)).stdout
    with database.begin() as connection:
        assert operators.counts(connection) == {"titan-v": 1}
        assert doubtful.page(connection, Page()) == []
