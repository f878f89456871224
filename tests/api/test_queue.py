"""The queue with real workers: bursts, kill -9 during a job, SIGTERM, and the job states reported."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import sqlalchemy as sa

from app.config import Settings
from app.services.learning.retrain import queue_retrain
from app.store import artifacts, measurements, queue, revision, versions
from app.store.session import Database
from app.store.uploads import Filters
from tests.learning import kernel_rows
from tests.worker_process import TIMEOUT_S, eventually, job_when, over, training_held, worker

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def settings(settings: Settings) -> Settings:
    """Those of the module: workers are soon known to be dead, and what few rows teach is served, however wrong."""
    return replace(settings, heartbeat_s=0.3, stalled_after_s=2.0, retrain_most_error=1e9)


@pytest.fixture(scope="module", autouse=True)
def rows(database: Database) -> None:
    with database.begin() as connection:
        measurements.insert(connection, kernel_rows())


def test_a_burst_of_requests_is_one_job_that_survives_sigterm(
    settings: Settings, database: Database, tmp_path: Path
) -> None:
    (job_id,) = {queue_retrain(database, "ridge", None) for _ in range(5)}
    with database.begin() as connection:
        assert queue.waiting(connection) == 1
        assert queue.reap(connection, stalled_after_s=2, attempts=3) == [], "a waiting job is no orphan"
    with worker(settings, tmp_path) as running:
        with training_held(settings):
            before = job_when(database, job_id, "running")
            time.sleep(settings.stalled_after_s + 1)  # heartbeats go on while it trains, so nobody reaps it
            running.process.send_signal(signal.SIGTERM)
            time.sleep(1)
            assert running.process.poll() is None, "SIGTERM lets the job finish"
        assert running.process.wait(TIMEOUT_S) == 0
    job = over(database, job_id)
    assert (job.state, job.version, job.started_at) == ("succeeded", "1", before.started_at), job.reason
    assert job.result is not None and job.result["served"] and job.result["validation"]
    with database.begin() as connection:
        (version,) = [v for v in versions.served(connection) if v.predictor == "ridge"]
    assert artifacts.load(settings.models_dir, version.artifact_sha256)["predictor"] == "ridge"


def test_kill_9_of_the_worker_loses_nothing(settings: Settings, database: Database, tmp_path: Path) -> None:
    first = queue_retrain(database, "linear", None)
    with worker(settings, tmp_path) as running, training_held(settings):
        job_when(database, first, "running")
        trainer = running.trainer()
        running.end(signal.SIGKILL)
        psutil.wait_procs([trainer], timeout=TIMEOUT_S)
        assert not trainer.is_running() or trainer.status() == psutil.STATUS_ZOMBIE, "it ends with its worker"
    with worker(settings, tmp_path):
        assert over(database, first).state == "succeeded"
        job = over(database, queue_retrain(database, "linear", None))
        assert job.state == "succeeded", job.reason


def test_a_rollback_while_a_training_ends_is_what_it_is_compared_with(
    settings: Settings, database: Database, tmp_path: Path
) -> None:
    """A version was served that is worse than the one which an operator had gone back to meanwhile."""
    with worker(settings, tmp_path):
        first = over(database, queue_retrain(database, "lasso", None))
        with database.begin() as connection:
            measurements.insert(connection, kernel_rows("a busy machine", slower=3.0))
            unreadable = versions.add(
                connection, predictor="lasso", gpu_id="*", artifact_sha256="f" * 64, training_set_sha256="0", card={}
            )
            versions.serve(connection, unreadable.id)
        job_id = queue_retrain(database, "lasso", None)
        with database.begin() as connection:
            revision.lock(connection)
            publishing = {"progress": "lasso: publishing"}
            eventually(lambda: job_when(database, job_id, "running").result == publishing or None)
            versions.rollback(connection, "lasso", "*")
        job = over(database, job_id)
    assert job.reason is not None and "kept back" in job.reason
    with database.begin() as connection:
        now = versions.served_for(connection, "lasso", "*")
    assert now is not None and (now.version, first.state) == (first.version, "succeeded")


def test_rows_that_are_withdrawn_during_a_training_are_not_learned(
    settings: Settings, database: Database, tmp_path: Path
) -> None:
    """Its version was served after the removal, and nothing said that it had learned of the rows."""
    with database.begin() as connection:
        kept = measurements.counts(connection)
        measurements.insert(connection, kernel_rows("a contributor", slower=3.0))
    with worker(settings, tmp_path):
        job_id = queue_retrain(database, "svr", None)
        with database.begin() as connection:
            revision.lock(connection)
            publishing = {"progress": "svr: publishing"}
            eventually(lambda: job_when(database, job_id, "running").result == publishing or None)
            assert measurements.remove(connection, Filters(source="a contributor"))
        job = over(database, job_id)
    assert job.state == "succeeded" and job.result is not None, job.reason
    assert job.result["trained_on"]["rows"] == sum(rows for (kind, _), rows in kept.items() if kind == "kernel")


def test_a_follow_up_takes_over_from_a_killed_worker(settings: Settings, database: Database, tmp_path: Path) -> None:
    first = queue_retrain(database, "lasso", None)
    with worker(settings, tmp_path) as running, training_held(settings):
        job_when(database, first, "running")
        second = queue_retrain(database, "lasso", None)
        running.end(signal.SIGKILL)
    assert second != first
    with worker(settings, tmp_path):
        assert over(database, second).state == "succeeded"
        dead = over(database, first)
    assert dead.state == "failed" and "later request" in (dead.reason or "")


def test_a_killed_training_process_fails_its_job(settings: Settings, database: Database, tmp_path: Path) -> None:
    job_id = queue_retrain(database, "ridge", None)
    with worker(settings, tmp_path) as running:
        with training_held(settings):
            job_when(database, job_id, "running")
            running.trainer().kill()
            job = over(database, job_id)
        assert job.state == "failed" and "signal 9" in (job.reason or "")
        assert over(database, queue_retrain(database, "ridge", None)).state == "succeeded", "the next one runs"


def test_a_training_over_its_time_limit_is_ended(settings: Settings, database: Database, tmp_path: Path) -> None:
    job_id = queue_retrain(database, "ridge", None)
    with worker(replace(settings, retrain_timeout_s=2.0), tmp_path), training_held(settings):
        job = over(database, job_id)
    assert job.state == "failed" and "more than 2 s" in (job.reason or "")


def test_a_job_that_kills_every_worker_fails(database: Database) -> None:
    job_id = queue_retrain(database, "svr", None)
    for death in range(3):
        with database.begin() as connection:
            connection.execute(sa.text("UPDATE procrastinate_jobs SET status = 'doing' WHERE status = 'todo'"))
            (reaped,) = queue.reap(connection, stalled_after_s=2, attempts=3)
        assert reaped.job_id == job_id
        assert (reaped.outcome == "queued again") == (death < 2)
    assert "3 times" in (over(database, job_id).reason or "")
