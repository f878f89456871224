"""The queue of retrainings: Procrastinate on the same PostgreSQL, kept in step with the jobs that callers see.

A job of `retrain_jobs` is open while it is queued or running. One rule holds whatever dies when: an open job has a
task that waits or runs, and `reap` makes it so again.
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
    """A job whose worker died, and what became of it: `outcome` is "queued again" or the reason it failed."""

    job_id: int
    outcome: str


def defer_retrain(connection: Connection, job_id: int, predictor: str, gpu_id: str) -> None:
    """Queue the task of a job in the caller's transaction: one waits per predictor and GPU, one runs per predictor."""
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


# A task that still waits although its job is over (somebody ran that by hand) takes up the new job.
_REUSE = sa.text("""
    UPDATE procrastinate_jobs SET args = jsonb_build_object('job_id', CAST(:job_id AS BIGINT))
    WHERE status = 'todo' AND task_name = :task AND queueing_lock = :name
""")


def open_app(url: str) -> App:
    """The application of a worker process, its connections not yet open."""
    return App(connector=PsycopgConnector(conninfo=url, min_size=1, max_size=4, timeout=CONNECT_TIMEOUT_S))


def check(connection: Connection) -> None:
    """Raise unless the queue's tables are there."""
    connection.execute(sa.text("SELECT 1 FROM procrastinate_jobs LIMIT 1"))


def waiting(connection: Connection) -> int:
    """How many jobs wait for a worker."""
    found = connection.execute(sa.text("SELECT count(*) FROM procrastinate_jobs WHERE status = 'todo'"))
    return int(found.scalar_one())


def workers_alive(connection: Connection, *, stalled_after_s: float) -> int:
    """How many workers said that they live within the last seconds."""
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
    """Give every job whose worker died a task again, or fail it where a follow-up waits or attempts are used up."""
    connection.execute(_FINISH_STALLED, {"task": TASK, "stalled_after_s": stalled_after_s})
    return [_revive(connection, orphan, attempts) for orphan in connection.execute(_ORPHANS, {"task": TASK}).all()]


def _revive(connection: Connection, orphan: sa.Row[Any], attempts: int) -> Reaped:
    if orphan.deaths >= attempts:
        reason = f"The worker died in the middle of it {orphan.deaths} times; out of memory, perhaps."
    else:
        try:
            with connection.begin_nested():
                jobs.requeue(connection, orphan.id)
                defer_retrain(connection, orphan.id, orphan.predictor, orphan.gpu_id)
            return Reaped(orphan.id, "queued again")
        except IntegrityError:
            reason = "The worker died in the middle of it; a later request for the same predictor and GPU waits."
    jobs.fail(connection, orphan.id, reason)
    return Reaped(orphan.id, reason)
