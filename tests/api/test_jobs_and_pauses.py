"""Jobs outlive a database that pauses, restarts or has no space, and are tried again."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from app.bootstrap.runtime import open_runtime
from app.config import Settings
from app.services.learning.retrain import queue_retrain
from app.store import measurements
from app.store.postgres import EmbeddedPostgres
from app.store.session import Database
from tests.learning import kernel_rows
from tests.server_processes import hanging, signal_server
from tests.worker_process import TIMEOUT_S, job_when, over, training_held, worker

pytestmark = pytest.mark.slow

PAUSE_S = 7.0  # longer than a worker counts as alive, than it waits for a connection, and than a stop lets a job run


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("own")


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[EmbeddedPostgres]:
    """A PostgreSQL of this module, given to the worker as an external one; what it commits outlives a kill."""
    with EmbeddedPostgres(root) as running:
        yield running


@pytest.fixture(scope="module")
def settings(server: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder = tmp_path_factory.mktemp("data")
    return Settings(
        database_url=server.url,
        data_dir=folder,
        seed_measurements_dir=folder / "none",
        heartbeat_s=0.3,
        stalled_after_s=2.0,
        stop_grace_s=1.0,
        retrain_wait_s=60.0,
    )


@pytest.fixture(scope="module")
def database(settings: Settings) -> Iterator[Database]:
    with open_runtime(settings) as runtime:
        with runtime.database.begin() as connection:
            measurements.insert(connection, kernel_rows())
        yield runtime.database


def test_a_pause_of_the_database_leaves_a_job_running(
    settings: Settings, database: Database, root: Path, tmp_path: Path
) -> None:
    job_id = queue_retrain(database, "ridge", None)
    with worker(settings, tmp_path) as running:
        with training_held(settings):
            before = job_when(database, job_id, "running")
            trainer = running.trainer()
            with hanging(root):
                time.sleep(PAUSE_S)
            time.sleep(settings.stalled_after_s + 1)
            assert trainer.is_running() and trainer.status() != psutil.STATUS_ZOMBIE
        job = over(database, job_id)
    assert (job.state, job.started_at) == ("succeeded", before.started_at), job.reason


def test_a_restart_of_the_database_leaves_a_job_running(
    settings: Settings, server: EmbeddedPostgres, database: Database, root: Path, tmp_path: Path
) -> None:
    job_id = queue_retrain(database, "linear", None)
    with worker(settings, tmp_path) as running:
        with training_held(settings) as holder:
            before = job_when(database, job_id, "running")
            trainer = running.trainer()
            signal_server(root, signal.SIGKILL)
            holder.close()
            time.sleep(PAUSE_S / 2)
            server.ensure_running()
        assert trainer.is_running()
        job = over(database, job_id)
    assert (job.state, job.started_at) == ("succeeded", before.started_at), job.reason


def test_a_job_is_tried_again_after_it_waited_in_vain(
    settings: Settings, server: EmbeddedPostgres, database: Database, root: Path, tmp_path: Path
) -> None:
    impatient = replace(settings, retrain_wait_s=0.1)
    job_id = queue_retrain(database, "lasso", None)
    with worker(impatient, tmp_path) as running:
        with training_held(settings) as holder:
            job_when(database, job_id, "running")
            trainer = running.trainer()
            signal_server(root, signal.SIGKILL)
            holder.close()
            psutil.wait_procs([trainer], timeout=TIMEOUT_S)
            server.ensure_running()
        job = over(database, job_id)
    assert job.state == "succeeded", job.reason
