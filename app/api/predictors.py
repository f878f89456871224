"""Predictors, their versions and retraining jobs."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field

from app.api.deps import CHECKED_BODY, BodyDep, DatabaseDep, HolderDep, Id, SettingsDep
from app.engine.engine import Refusal
from app.engine.shipped import Shipped
from app.errors import BadInput
from app.services.learning.manage_versions import (
    HostsOverview,
    Overview,
    hosts_overview,
    predictor_overviews,
    request_retraining,
    roll_back_version,
)
from app.stacks.release import SHIPPED_HOSTS
from app.store import jobs
from app.store.jobs import Job
from app.store.versions import POOLED, Version

router = APIRouter(tags=["Learning"])

MAX_HISTORY = 50
_LEAVE = "Version to go back from: sent twice, the request goes back once. Default: the one that is served."


class VersionOut(BaseModel):
    """A trained version and its accuracy card; `state` is served, retired or kept_back."""

    version: str = Field(description="Version of the predictor; shipped-...: included with the code")
    gpu: str | None = Field(description="null: pooled over all GPUs")
    state: str = Field(description="served, retired, kept_back, or shipped with the code")
    trained_on: dict[str, Any] = Field(description="rows and GPUs")
    validation: list[dict[str, Any]] = Field(
        description="held-out errors per split, family and GPU; a note where rows were too few"
    )
    training_set_sha256: str = Field(description="Hash of the training rows")
    created_at: datetime | None = Field(description="null: shipped with the code")


class AnsweringOut(BaseModel):
    """The version that answers in this process, for one GPU or (null) for all without their own."""

    gpu: str | None = Field(description="GPU that has a version of its own; null: all others")
    version: str = Field(description="Version of the predictor; shipped-...: included with the code")


class RefusedOut(BaseModel):
    """A version that should answer and does not, and why; what shipped or answered before does instead."""

    gpu: str | None = Field(description="null: pooled over all GPUs")
    version: str = Field(description="Version of the predictor; shipped-...: included with the code")
    reason: str = Field(description="Why")


class PredictorOut(BaseModel):
    """One predictor; `answering` is empty until a predictor that needs training is trained."""

    name: str = Field(description="Name of the predictor")
    trainable: bool = Field(description="Whether it can learn from measurements")
    needs_training: bool = Field(description="Whether it needs training before it can answer")
    answering: list[AnsweringOut] = Field(description="Versions in use; empty: none")
    refused: list[RefusedOut] = Field(description="versions that this process cannot serve")
    shipped: VersionOut | None = Field(description="answers if no stored version is served")
    served: list[VersionOut] = Field(description="Versions trained here that answer")
    history: list[VersionOut] = Field(description=f"newest first, at most {MAX_HISTORY}")


class HostOut(BaseModel):
    """What the host of a serving stack takes, seconds."""

    stack: str = Field(description="vllm, sglang or trtllm; sglang-mixture: of mixtures of experts")
    version: str = Field(description="version of serving-hosts, or the name of the times that ship")
    step_s: float = Field(description="of every step")
    sequence_s: float = Field(description="of every sequence that decodes in a step")
    request_s: float = Field(description="from a request's arrival until the engine has it, others aside")
    serial_s: float = Field(description="of a request, for which other requests wait")
    serial_token_s: float = Field(description="of a token of a prompt, for which other requests wait")
    prefill: float = Field(description="factor on steps with prompts")
    latent_s: float = Field(description="of a request to a model with latent attention, more than request_s")


class ServingHostsOut(BaseModel):
    """Times of serving stacks' hosts. `POST /retrain` of `serving-hosts` fits them to measured loads."""

    stacks: list[HostOut] = Field(description="the times that answer in this process")
    refused: list[RefusedOut] = Field(description="versions that this process cannot serve")
    history: list[VersionOut] = Field(description=f"newest first, at most {MAX_HISTORY}")


class PredictorList(BaseModel):
    """Every predictor, and the times of serving stacks' hosts, which are retrained like one."""

    items: list[PredictorOut] = Field(description="Every predictor")
    serving_hosts: ServingHostsOut = Field(description="times of serving stacks' hosts")


@router.get("/predictors")
def list_predictors(database: DatabaseDep, holder: HolderDep, settings: SettingsDep) -> PredictorList:
    """Every predictor with its versions in use, their training data and validated errors."""
    holder.refresh()
    return PredictorList(
        items=[_predictor(item) for item in predictor_overviews(database, holder.engine, settings.shipped_dir)],
        serving_hosts=_hosts(hosts_overview(database, holder.engine)),
    )


@router.post("/predictors/{name}/rollback")
def roll_back_predictor(
    name: Annotated[str, Path(min_length=1, max_length=100, description="Name of the predictor")],
    body: BodyDep,
    database: DatabaseDep,
    holder: HolderDep,
    settings: SettingsDep,
    gpu: Annotated[str | None, Query(min_length=1, max_length=200, description="Default: the pooled version.")] = None,
    leave: Annotated[str | None, Query(min_length=1, max_length=100, description=_LEAVE)] = None,
) -> VersionOut:
    """Serve the previously served version again; 409 if there is none, or if `leave` is not served."""
    if body:  # POST /retrain takes the GPU in its body; ignoring it here would roll back the pooled version
        raise BadInput("This route takes no body; give the GPU as a parameter: ?gpu=NAME.")
    version = roll_back_version(database, holder.engine.catalog, name, gpu, settings.shipped_dir, leave=leave)
    holder.refresh()
    if version is None:
        return _SHIPPED_HOSTS
    return _shipped(version) if isinstance(version, Shipped) else _version(version)


_SHIPPED_HOSTS = VersionOut(
    version=SHIPPED_HOSTS,
    gpu=None,
    state="shipped",
    trained_on={},
    validation=[],
    training_set_sha256="",
    created_at=None,
)


def _hosts(overview: HostsOverview) -> ServingHostsOut:
    hosts = overview.answering
    return ServingHostsOut(
        stacks=[
            HostOut(stack=stack, version=hosts.version_of(stack), **times._asdict())
            for stack, times in hosts.times().items()
        ],
        refused=[_refused(one) for one in overview.refused],
        history=[_version(version) for version in overview.history[:MAX_HISTORY]],
    )


def _refused(one: Refusal) -> RefusedOut:
    return RefusedOut(gpu=_gpu(one.gpu_id), version=one.version, reason=one.reason)


def _predictor(item: Overview) -> PredictorOut:
    return PredictorOut(
        name=item.name,
        trainable=item.trainable,
        needs_training=item.needs_training,
        answering=[AnsweringOut(gpu=_gpu(gpu), version=version) for gpu, version in sorted(item.answering.items())],
        refused=[_refused(one) for one in item.refused],
        shipped=None if item.shipped is None else _shipped(item.shipped),
        served=[_version(version) for version in item.served],
        history=[_version(version) for version in item.history[:MAX_HISTORY]],
    )


def _version(version: Version) -> VersionOut:
    return VersionOut(
        version=version.version,
        gpu=_gpu(version.gpu_id),
        state=version.state,
        trained_on=version.card.get("trained_on", {}),
        validation=version.card.get("validation", []),
        training_set_sha256=version.training_set_sha256,
        created_at=version.created_at,
    )


def _shipped(version: Shipped) -> VersionOut:
    return VersionOut(
        version=version.version,
        gpu=None,
        state="shipped",
        trained_on=version.card["trained_on"],
        validation=version.card["validation"],
        training_set_sha256=version.manifest["training_set_sha256"],
        created_at=None,
    )


def _gpu(gpu_id: str) -> str | None:
    return None if gpu_id == POOLED else gpu_id


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
def retrain_predictor(request: RetrainRequest, database: DatabaseDep, holder: HolderDep) -> RetrainAnswer:
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
    of_result = {name: result.get(name) for name in ("progress", "served", "validation", "trained_on")}
    return JobOut.model_validate(asdict(job) | of_result | {"job_id": job.id, "gpu": _gpu(job.gpu_id)})
