"""`gpucast measurements` on a real database, as a process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from app.config import Settings
from app.store import measurements
from app.store.measurement_filters import Page
from app.store.measurements import MeasurementRow
from app.store.session import Database

pytestmark = pytest.mark.slow


def _delete(settings: Settings, *words: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **settings.environment()}
    command = [sys.executable, "-m", "app.cli", "measurements", "delete", *words]
    return subprocess.run(command, env=environment, input=typed, capture_output=True, text=True, check=False)


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
