"""Queue of retraining jobs: Procrastinate on the same PostgreSQL, kept consistent with `retrain_jobs`.

A job is open while it is queued or running. Invariant: every open job has a queued or running task; `reap` restores it
after a process died.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import psycopg
import sqlalchemy as sa
from procrastinate import App, PsycopgConnector, SyncPsycopgConnector
from procrastinate.exceptions import ConnectorException
from procrastinate.manager import JobManager
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from app.errors import Unavailable
from app.store import jobs
from app.store.session import KEEPALIVE, Database

TASK = "predictor.retrain"
QUEUE = "retrain"
CONNECT_TIMEOUT_S = 5
RECONNECT_S = 1.0
PROMPT_S = 1.0  # a longer wait for an answer is a pause of the database
LOG = logging.getLogger(__name__)


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


def open_app(database: Database) -> App:
    """Return the application of a worker process, with unopened connections."""
    kwargs = {**KEEPALIVE, "connect_timeout": CONNECT_TIMEOUT_S}
    connector = PsycopgConnector(
        conninfo=database.url, min_size=1, max_size=4, timeout=CONNECT_TIMEOUT_S, kwargs=kwargs
    )
    app = App(connector=connector)
    app.job_manager = _PatientManager(connector, database)
    return app


class _PatientManager(JobManager):
    """Procrastinate's statements, of which those that a running job needs outlive a database that goes away.

    Where one of them fails, the worker would stop, and abort its job after a grace period.
    """

    def __init__(self, connector: PsycopgConnector, database: Database) -> None:
        super().__init__(connector)
        self._database = database

    async def update_heartbeat(self, worker_id: int) -> None:
        """Beat over our own connection: Procrastinate's pool tries again ever more seldom."""
        try:
            await asyncio.to_thread(_beat, self._database, worker_id)
        except Unavailable as error:  # the next one is due in an instant
            LOG.warning("a heartbeat failed: %s", error.detail)

    async def listen_for_jobs(self, **options: Any) -> None:
        """Listen again after the connection was lost."""
        await _until_done(super().listen_for_jobs, **options)

    async def finish_job(self, *given: Any, **options: Any) -> None:
        """Finish the task when the database is back: a task left open would keep its predictor locked."""
        await _until_done(super().finish_job, *given, **options)


async def _until_done(run: Callable[..., Awaitable[None]], *given: Any, **options: Any) -> None:
    while True:
        try:
            return await run(*given, **options)
        except ConnectorException as error:
            if not isinstance(error.__cause__, psycopg.OperationalError):
                raise
            LOG.warning("the queue is away: %s", error.__cause__)
            await asyncio.sleep(RECONNECT_S)


def _beat(database: Database, worker_id: int) -> None:
    statement = "UPDATE procrastinate_workers SET last_heartbeat = now() WHERE id = :worker_id"
    with database.begin() as connection:
        connection.execute(sa.text(statement), {"worker_id": worker_id})


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


class Reaper:
    """Queues the jobs of dead workers again.

    A pause of the database keeps all workers from their heartbeats, so that they look dead. After one, the reaper waits
    for `stalled_after_s` seconds, in which those that live are heard again.
    """

    def __init__(self, *, stalled_after_s: float, attempts: int) -> None:
        self._stalled_after_s = stalled_after_s
        self._attempts = attempts
        self._paused_at = time.monotonic()  # what was before this process is not known

    def paused(self) -> None:
        """Record that the database was away until now."""
        self._paused_at = time.monotonic()

    def reap(self, database: Database) -> list[Reaped]:
        """Do what `reap` does in a transaction of its own, unless the database has just been away."""
        began = time.monotonic()
        with database.begin() as connection:
            # The transaction's time, with which heartbeats are compared, is that of its first statement.
            connection.execute(sa.text("SELECT 1"))
            if time.monotonic() - began > PROMPT_S:
                self.paused()
            if time.monotonic() - self._paused_at < self._stalled_after_s:
                return []
            return reap(connection, stalled_after_s=self._stalled_after_s, attempts=self._attempts)


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
