"""Routes of retraining jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field

from app.api.deps import CHECKED_BODY, DatabaseDep, HolderDep, Id
from app.services.learning.manage_versions import request_retraining
from app.store import jobs
from app.store.jobs import Job
from app.store.versions import POOLED

router = APIRouter(tags=["Learning"])

MAX_JOBS = 100


class RetrainRequest(BaseModel):
    """A trainable predictor, and the GPU to train for; default: pooled over all."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"predictor": "forest"}})

    predictor: str = Field(min_length=1, max_length=100, description="Name of the predictor")
    gpu: str | None = Field(
        default=None, min_length=1, max_length=200, description="Id or alias of a GPU; absent: pooled over all"
    )


class RetrainAnswer(BaseModel):
    """Job to poll at GET /jobs/{job_id}. Simultaneous requests share one job."""

    job_id: int = Field(description="Identifier of the retraining, for GET /jobs/{job_id}")


class JobOut(BaseModel):
    """A retraining. `served` is whether its version is in use; `reason` why it failed or was not served."""

    job_id: int = Field(description="Identifier of the retraining, for GET /jobs/{job_id}")
    predictor: str = Field(description="Name of the predictor")
    gpu: str | None = Field(description="null: pooled over all GPUs")
    state: str = Field(description="queued, running, succeeded or failed")
    progress: str | None = Field(description="current step of a running job")
    version: str | None = Field(description="Version of the predictor; shipped-...: included with the code")
    served: bool | None = Field(description="Whether its version answers now")
    validation: list[dict[str, Any]] | None = Field(
        description="errors on held-out rows; a note where they were too few"
    )
    trained_on: dict[str, Any] | None = Field(description="Training rows and GPUs")
    reason: str | None = Field(description="Why it failed, or why its version was not served")
    created_at: datetime = Field(description="When it was stored")
    started_at: datetime | None = Field(description="When it started; null: queued")
    finished_at: datetime | None = Field(description="When it ended; null: not yet")


class JobList(BaseModel):
    """The latest retrainings."""

    items: list[JobOut] = Field(description="newest first")


@router.post("/retrain", status_code=202, dependencies=[CHECKED_BODY])
def post_retrain(request: RetrainRequest, database: DatabaseDep, holder: HolderDep) -> RetrainAnswer:
    """Queue a retraining from the stored measurements. Refused at once if it can only fail."""
    holder.refresh()
    job_id = request_retraining(database, holder.engine.catalog, request.predictor, request.gpu)
    return RetrainAnswer(job_id=job_id)


@router.get("/jobs")
def list_jobs(
    database: DatabaseDep, limit: Annotated[int, Query(ge=1, le=MAX_JOBS, description="Most entries of a page")] = 20
) -> JobList:
    """The latest retrainings, newest first."""
    with database.begin() as connection:
        return JobList(items=[_out(job) for job in jobs.recent(connection, limit)])


@router.get("/jobs/{job_id}")
def get_job(job_id: Annotated[Id, Path(description="Identifier of the retraining")], database: DatabaseDep) -> JobOut:
    """State of a retraining, and its version and validation errors once it succeeded."""
    with database.begin() as connection:
        return _out(jobs.get(connection, job_id))


def _out(job: Job) -> JobOut:
    result = job.result or {}
    return JobOut(
        job_id=job.id,
        predictor=job.predictor,
        gpu=None if job.gpu_id == POOLED else job.gpu_id,
        state=job.state,
        progress=result.get("progress"),
        version=job.version,
        served=result.get("served"),
        validation=result.get("validation"),
        trained_on=result.get("trained_on"),
        reason=job.reason,
        created_at=job.created_at,
        started_at=job.started_at,
        finished_at=job.finished_at,
    )
