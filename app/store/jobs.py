"""Storage of retraining jobs with their states and failure reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.dialects.postgresql import insert

from app.errors import NotFound
from app.store.sql_tables import RETRAIN_JOBS as JOBS
from app.store.sql_tables import columns_of, records

STATES = ("queued", "running", "succeeded", "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One retraining job.

    reason  why it failed or its version was kept back
    result  card of the new version; while the job runs, {"progress": current step}
    """

    id: int
    predictor: str
    gpu_id: str
    state: str
    version: str | None
    result: dict[str, Any] | None
    reason: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


_COLUMNS = columns_of(JOBS, Job)
_SELECT = sa.select(*_COLUMNS)


def enqueue(connection: Connection, predictor: str, gpu_id: str) -> tuple[Job, bool]:
    """Return the queued job of a predictor and GPU, and True if this call created it."""
    statement = insert(JOBS).values(predictor=predictor, gpu_id=gpu_id, state="queued")
    # The no-op update locks the queued row: no worker starts it before the caller's rows are committed.
    statement = statement.on_conflict_do_update(
        index_elements=[JOBS.c.predictor, JOBS.c.gpu_id],
        index_where=sa.text("state = 'queued'"),
        set_={"state": "queued"},
    )
    inserted: sa.ColumnElement[bool] = sa.literal_column(
        "retrain_jobs.xmax = 0"
    )  # PostgreSQL's marker of an inserted row
    *values, made = connection.execute(statement.returning(*_COLUMNS, inserted)).one()
    return Job(**dict(zip(Job.__slots__, values, strict=True))), bool(made)


def get(connection: Connection, job_id: int) -> Job:
    """Return a job; raises NotFound."""
    row = connection.execute(_SELECT.where(JOBS.c.id == job_id)).one_or_none()
    if row is None:
        raise NotFound(f"No job has the id {job_id}.")
    return Job(**row._mapping)


def recent(connection: Connection, limit: int) -> list[Job]:
    """Return the latest jobs, newest first."""
    return records(connection, _SELECT.order_by(JOBS.c.id.desc()).limit(limit), Job)


def counts(connection: Connection) -> dict[str, int]:
    """Return the number of jobs in every state."""
    rows = connection.execute(sa.select(JOBS.c.state, sa.func.count()).group_by(JOBS.c.state))
    return dict.fromkeys(STATES, 0) | {state: int(jobs) for state, jobs in rows}


def start(connection: Connection, job_id: int) -> Job:
    """Mark a queued job, or one whose worker died, as running; raises NotFound if it has ended."""
    statement = sa.update(JOBS).where(JOBS.c.id == job_id, JOBS.c.state.in_(("queued", "running")))
    statement = statement.values(state="running", started_at=sa.func.clock_timestamp(), result=sa.null())
    row = connection.execute(statement.returning(*_COLUMNS)).one_or_none()
    if row is None:
        raise NotFound(f"No job with the id {job_id} waits to be run.")
    return Job(**row._mapping)


def report_progress(connection: Connection, job: Job, progress: str) -> None:
    """Record the progress of a running job."""
    connection.execute(sa.update(JOBS).where(_running(job)).values(result={"progress": progress}))


def finish(
    connection: Connection,
    job: Job,
    *,
    version: str | None = None,
    result: Mapping[str, Any] | None = None,
    reason: str | None = None,
    failed: bool = False,
) -> bool:
    """End a running job; return False if another process has ended or restarted it."""
    return _end(connection, _running(job), version=version, result=result, reason=reason, failed=failed)


def fail(connection: Connection, job_id: int, reason: str) -> bool:
    """Fail an open job, whichever process runs it; return False if it has ended."""
    mine = (JOBS.c.id == job_id) & JOBS.c.state.in_(("queued", "running"))
    return _end(connection, mine, version=None, result=None, reason=reason, failed=True)


def requeue(connection: Connection, job_id: int) -> None:
    """Queue an open job again; raises IntegrityError if another job of its predictor and GPU is queued."""
    mine = (JOBS.c.id == job_id) & JOBS.c.state.in_(("queued", "running"))
    connection.execute(sa.update(JOBS).where(mine).values(state="queued", started_at=None))


def _running(job: Job) -> sa.ColumnElement[bool]:
    """Return the condition that the job has not been restarted or ended by another process."""
    return (JOBS.c.id == job.id) & (JOBS.c.state == "running") & (JOBS.c.started_at == job.started_at)


def _end(
    connection: Connection,
    mine: sa.ColumnElement[bool],
    *,
    version: str | None,
    result: Mapping[str, Any] | None,
    reason: str | None,
    failed: bool,
) -> bool:
    values = {"version": version, "result": sa.null() if result is None else dict(result), "reason": reason}
    state = "failed" if failed else "succeeded"
    statement = sa.update(JOBS).where(mine).values(**values, state=state, finished_at=sa.func.clock_timestamp())
    return connection.execute(statement).rowcount > 0
