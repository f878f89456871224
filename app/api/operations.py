"""Routes of operations: life, readiness, metrics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, Response

from app import __version__
from app.api.deps import HolderDep, RuntimeDep
from app.api.metrics import Gauge, SharedCounts, text
from app.api.middleware import Service
from app.api.openapi import json_answer
from app.api.problems import problem
from app.bootstrap.readiness import readiness, store_is_full
from app.bootstrap.runtime import Runtime
from app.engine.snapshot_holder import SnapshotHolder
from app.errors import Unavailable
from app.store import jobs

router = APIRouter(tags=["Operations"])

_TEXT = {"type": "string"}
_PART = {
    "type": "object",
    "required": ["ok", "notes"],
    "properties": {"ok": {"type": "boolean"}, "notes": {"type": "array", "items": _TEXT}},
}
_HEALTH = {
    "type": "object",
    "required": ["status", "version"],
    "properties": {"status": {"enum": ["ok"]}, "version": _TEXT},
}
_READY = {
    "type": "object",
    "required": ["status", "degraded", "parts", "revision", "corrected"],
    "properties": {
        "status": {"enum": ["ready", "degraded"]},
        "degraded": {"type": "array", "items": _TEXT, "description": "what does not work although predictions do"},
        "parts": {"type": "object", "additionalProperties": _PART},
        "revision": {"type": "integer", "description": "revision of the database that predictions are made from"},
        "corrected": {
            "type": "integer",
            "description": "revision up to which measured rows correct the predictions of others; follows in seconds",
        },
    },
}


@router.get("/healthz", responses={200: json_answer("The process is up", _HEALTH)})
async def check_health() -> Any:
    """Return whether the process answers."""
    return {"status": "ok", "version": __version__}


@router.get("/livez", responses={200: json_answer("The process is up", _HEALTH)})
async def check_liveness() -> Any:
    """Return whether the process answers: the name that Kubernetes uses for `/healthz`."""
    return await check_health()


@router.get("/readyz", responses={200: json_answer("Predictions are answered", _READY)})
async def check_readiness(request: Request, runtime: RuntimeDep, holder: HolderDep) -> Response:
    """Return whether predictions can be answered; 503 says why not.

    `status` is `degraded` where they can, but nothing can be stored or learned; `degraded` says why.
    """
    service: Service = request.app
    parts = await service.readiness.result(partial(readiness, runtime, holder))
    broken = [f"{part.name}: {part.problem}" for part in parts if part.problem]
    if broken:
        headers = {"Retry-After": str(Unavailable.retry_after_s)}
        return problem(503, Unavailable.code, Unavailable.title, "; ".join(broken), headers=headers)
    degraded = [f"{part.name}: {part.degraded}" for part in parts if part.degraded]
    state = {part.name: {"ok": not part.degraded, "notes": list(part.notes)} for part in parts}
    return JSONResponse(
        {
            "status": "degraded" if degraded else "ready",
            "degraded": degraded,
            "parts": state,
            "revision": holder.engine.revision,
            "corrected": holder.engine.corrected,
        }
    )


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"description": "Prometheus text", "content": {"text/plain": {"schema": _TEXT}}}},
)
def get_metrics(request: Request, holder: HolderDep, runtime: RuntimeDep) -> Response:
    """Counters of all processes of this service, and its state, for Prometheus."""
    shared: SharedCounts = request.app.state.counts
    return Response(text(shared.all(), _gauges(holder, runtime)), media_type=CONTENT_TYPE_LATEST)


def _gauges(holder: SnapshotHolder, runtime: Runtime) -> Iterator[Gauge]:
    yield Gauge("gpucast_engine_revision", "Revision of the engine that serves", {(): holder.engine.revision})
    corrected: dict[tuple[str, ...], float] = {(): holder.engine.corrected}
    yield Gauge("gpucast_engine_corrected_revision", "Revision whose measured rows correct predictions", corrected)
    yield Gauge("gpucast_database_up", "1 while the database answers", {(): not holder.health.database})
    read_only: dict[tuple[str, ...], float] = {(): runtime.database.is_read_only}
    yield Gauge("gpucast_database_read_only", "1 while the database is read-only, as after a failover", read_only)
    full: dict[tuple[str, ...], float] = {
        ("database",): runtime.database.is_full,
        ("models",): store_is_full(runtime.settings),
    }
    yield Gauge("gpucast_storage_full", "1 while a disk is full, so that changes are refused", full, ("disk",))
    versions: dict[tuple[str, ...], float] = {
        (name, gpu, served.version): 1.0 for (name, gpu), served in holder.engine.served.items()
    }
    labels = ("predictor", "gpu", "version")
    yield Gauge("gpucast_version_served", "Versions that answer; gpu * is all others", versions, labels)
    refused: dict[tuple[str, ...], float] = {
        (one.predictor, one.gpu_id, one.version): 1.0 for one in holder.engine.refused
    }
    yield Gauge(
        "gpucast_version_refused", "Versions that should answer and cannot here; GET /predictors", refused, labels
    )
    states: dict[tuple[str, ...], float] = {}
    with suppress(Unavailable), runtime.database.begin() as connection:
        states = {(state,): count for state, count in jobs.counts(connection).items()}
    yield Gauge("gpucast_jobs", "Retrainings by their state", states, ("state",))
