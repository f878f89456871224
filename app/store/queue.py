"""Queue of retraining jobs: Procrastinate on the same PostgreSQL, kept consistent with `retrain_jobs`.

A job is open while it is queued or running. Invariant: every open job has a queued or running task; `reap` restores it
after a process died.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from procrastinate import App, PsycopgConnector, SyncPsycopgConnector
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from app.store import jobs

TASK = "predictor.retrain"
QUEUE = "retrain"
CONNECT_TIMEOUT_S = 5


@dataclass(frozen=True, slots=True)
class Reaped:
    """A job whose worker died; `outcome` is "queued again" or the reason of its failure."""

    job_id: int
    outcome: str


def defer_retrain(connection: Connection, job_id: int, predictor: str, gpu_id: str) -> None:
    """Queue the task of a job in the caller's transaction; at most one is queued per predictor and GPU.

    At most one task runs per predictor.
    """
    name = f"{predictor} {gpu_id}"
    if connection.execute(_REUSE, {"task": TASK, "name": name, "job_id": job_id}).rowcount:
        return
    deferrer = App(connector=SyncPsycopgConnector()).configure_task(
        name=TASK,
        queue=QUEUE,
        lock=predictor,
        queueing_lock=name,
        connection=connection.connection.driver_connection,
    )
    deferrer.defer(job_id=job_id)


# A queued task whose job has ended (run by hand) is reused for the new job.
_REUSE = sa.text("""
    UPDATE procrastinate_jobs SET args = jsonb_build_object('job_id', CAST(:job_id AS BIGINT))
    WHERE status = 'todo' AND task_name = :task AND queueing_lock = :name
""")


def open_app(url: str) -> App:
    """Return the application of a worker process, with unopened connections."""
    return App(connector=PsycopgConnector(conninfo=url, min_size=1, max_size=4, timeout=CONNECT_TIMEOUT_S))


def check(connection: Connection) -> None:
    """Raise an error if the queue's tables are missing."""
    connection.execute(sa.text("SELECT 1 FROM procrastinate_jobs LIMIT 1"))


def waiting(connection: Connection) -> int:
    """Return the number of queued tasks."""
    counted = connection.execute(sa.text("SELECT count(*) FROM procrastinate_jobs WHERE status = 'todo'"))
    return int(counted.scalar_one())


def workers_alive(connection: Connection, *, stalled_after_s: float) -> int:
    """Return the number of workers with a heartbeat within the last `stalled_after_s` seconds."""
    statement = """
        SELECT count(*) FROM procrastinate_workers
        WHERE last_heartbeat > now() - make_interval(secs => :stalled_after_s)
    """
    return int(connection.execute(sa.text(statement), {"stalled_after_s": stalled_after_s}).scalar_one())


_FINISH_STALLED = sa.text("""
    SELECT procrastinate_finish_job_v1(stalled.id, 'failed', false) FROM (
        SELECT task.id FROM procrastinate_jobs task
        LEFT JOIN procrastinate_workers worker ON worker.id = task.worker_id
        WHERE task.status = 'doing' AND task.task_name = :task
        AND (worker.id IS NULL OR worker.last_heartbeat < now() - make_interval(secs => :stalled_after_s))
        FOR UPDATE OF task SKIP LOCKED
    ) AS stalled
""")

_ORPHANS = sa.text("""
    SELECT job.id, job.predictor, job.gpu_id, (
        SELECT count(*) FROM procrastinate_jobs task
        WHERE task.task_name = :task AND task.args ->> 'job_id' = job.id::text AND task.status = 'failed'
    ) AS deaths
    FROM retrain_jobs job
    WHERE job.state IN ('queued', 'running') AND NOT EXISTS (
        SELECT FROM procrastinate_jobs task
        WHERE task.task_name = :task AND task.args ->> 'job_id' = job.id::text AND task.status IN ('todo', 'doing')
    )
    ORDER BY job.id
    FOR UPDATE OF job SKIP LOCKED
""")


def reap(connection: Connection, *, stalled_after_s: float, attempts: int) -> list[Reaped]:
    """Queue every job whose worker died again, or fail it if a later job is queued or attempts are used up."""
    connection.execute(_FINISH_STALLED, {"task": TASK, "stalled_after_s": stalled_after_s})
    return [_revive(connection, orphan, attempts) for orphan in connection.execute(_ORPHANS, {"task": TASK}).all()]


def _revive(connection: Connection, orphan: sa.Row[Any], attempts: int) -> Reaped:
    if orphan.deaths >= attempts:
        reason = f"The worker died {orphan.deaths} times while running it; it may be out of memory."
    else:
        try:
            with connection.begin_nested():
                jobs.requeue(connection, orphan.id)
                defer_retrain(connection, orphan.id, orphan.predictor, orphan.gpu_id)
            return Reaped(orphan.id, "queued again")
        except IntegrityError:
            reason = "The worker died while running it; a later request for the same predictor and GPU is queued."
    jobs.fail(connection, orphan.id, reason)
    return Reaped(orphan.id, reason)
