"""A backup that is made while rows arrive and versions are trained: what was acknowledged before it is in it."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from app.config import Settings
from app.services.learning.retrain import queue_retrain
from app.store import measurements, versions
from app.store.session import Database
from app.store.sql_tables import OPERATOR_MEASUREMENTS
from benchmarks.uploads import rows
from tests import forked
from tests.busy_machine import until
from tests.conftest import new_database
from tests.learning import kernel_rows
from tests.service import Service
from tests.worker_process import over

pytestmark = pytest.mark.slow


def test_a_backup_beside_uploads_and_a_training_is_whole(
    settings: Settings, database: Database, postgres_url: str, tmp_path: Path
) -> None:
    with database.begin() as connection:
        measurements.insert(connection, kernel_rows())
    acknowledged, stopped = [0], threading.Event()
    with Service(settings, tmp_path / "log") as service:

        def send() -> None:
            for row in rows(1_000_000):
                if stopped.is_set():
                    return
                service.client.post("/measurements", json=[row]).raise_for_status()
                acknowledged[0] += 1

        sender = threading.Thread(target=send)
        sender.start()
        try:
            job_id = queue_retrain(database, "ridge", None)
            until(lambda: acknowledged[0])
            before, file = acknowledged[0], tmp_path / "backup"
            made = forked.run_command("backup", file, env=os.environ | settings.environment())
            assert made.returncode == 0 and not made.stderr, made.stderr
            until(lambda: acknowledged[0] > before)
            assert over(database, job_id).state == "succeeded"
        finally:
            stopped.set()
            sender.join()
    check_restored(settings, postgres_url, file, before)


def check_restored(settings: Settings, postgres_url: str, file: Path, least: int) -> None:
    """Check that a restored backup has so many rows of operators, and the artefacts that its versions name."""
    with new_database(postgres_url) as url:
        empty = replace(settings, database_url=url, data_dir=file.parent / f"restored-{file.name}")
        done = forked.run_command("restore", file, env=os.environ | empty.environment())
        assert done.returncode == 0 and not done.stderr, done.stderr
        restored = Database(url)
        with restored.begin() as connection:
            count = connection.execute(sa.select(sa.func.count()).select_from(OPERATOR_MEASUREMENTS)).scalar_one()
            assert versions.missing_artifacts(connection) == []
            assert len(versions.served(connection)) <= 1
        restored.close()
    assert count >= least
