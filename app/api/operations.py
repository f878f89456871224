"""Operations: is it up, is it ready, what has it done."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, Response

from app import __version__
from app.api.deps import HolderDep, RuntimeDep
from app.api.metrics import Metrics
from app.api.openapi import json_answer
from app.api.problems import problem
from app.errors import Unavailable
from app.services.readiness import readiness

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
    "required": ["status", "parts", "revision"],
    "properties": {
        "status": {"enum": ["ready"]},
        "parts": {"type": "object", "additionalProperties": _PART},
        "revision": {"type": "integer"},
    },
}


@router.get("/healthz", responses={200: json_answer("The process is up", _HEALTH)})
async def healthz() -> Any:
    """Whether the process answers."""
    return {"status": "ok", "version": __version__}


@router.get("/readyz", responses={200: json_answer("All parts are usable", _READY)})
def readyz(runtime: RuntimeDep, holder: HolderDep) -> Response:
    """Whether database, queue and model store are usable; 503 says which is not."""
    parts = readiness(runtime, holder)
    broken = [f"{part.name}: {part.problem}" for part in parts if part.problem]
    if broken:
        headers = {"Retry-After": str(Unavailable.retry_after_s)}
        return problem(503, Unavailable.code, Unavailable.title, "; ".join(broken), headers=headers)
    told = {part.name: {"ok": True, "notes": list(part.notes)} for part in parts}
    return JSONResponse({"status": "ready", "parts": told, "revision": holder.engine.revision})


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"description": "Prometheus text", "content": {"text/plain": {"schema": _TEXT}}}},
)
def metrics(request: Request, holder: HolderDep) -> Response:
    """Counters of this process, for Prometheus."""
    counted: Metrics = request.app.metrics
    counted.gauge("gpucast_engine_revision", "Revision of the engine that serves", holder.engine.revision)
    counted.gauge("gpucast_database_up", "1 while the database answers", not holder.health.database)
    return Response(counted.text(), media_type=CONTENT_TYPE_LATEST)
