"""Roles required by routes, if keys are required."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.routing import compile_path

from app.store.roles import Role

OPEN: Final = None  # to everybody, with or without a key
READ, PREDICT, CONTRIBUTE, ADMIN = Role

ROLES: Mapping[str, Mapping[str, Role | None]] = {
    "/": {"GET": PREDICT},
    "/accuracy": {"GET": READ},
    "/catalogue": {"GET": READ},
    "/catalogue/choices": {"GET": READ},
    "/catalogue/{name}": {"GET": READ},
    "/compare": {"POST": PREDICT},
    "/detail": {"GET": PREDICT},
    "/docs": {"GET": READ},
    "/gpus": {"GET": READ, "POST": CONTRIBUTE},
    "/gpus/{name}": {"GET": READ, "PATCH": ADMIN, "DELETE": ADMIN},
    "/gpus/{name}/plan": {"GET": PREDICT, "POST": PREDICT},
    "/graphs": {"GET": READ, "POST": PREDICT},
    "/graphs/{graph_id}": {"GET": READ},
    "/healthz": {"GET": OPEN},
    "/jobs": {"GET": READ},
    "/jobs/{job_id}": {"GET": READ},
    "/keys": {"GET": ADMIN, "POST": ADMIN},
    "/keys/events": {"GET": ADMIN},
    "/keys/{key_id:int}": {"DELETE": ADMIN},
    "/keys/{key_id}/rotate": {"POST": ADMIN},
    "/livez": {"GET": OPEN},
    "/llm-d/{prediction_id}/predict": {"POST": PREDICT},
    "/llm-d/{prediction_id}/predict/bulk": {"POST": PREDICT},
    "/llm-d/{prediction_id}/predict/bulk/strict": {"POST": PREDICT},
    "/llm-d/{prediction_id}/status": {"GET": READ},
    "/measured": {"GET": READ},
    "/measurements": {"GET": READ, "POST": CONTRIBUTE, "DELETE": ADMIN},
    "/measurements/confirm": {"POST": ADMIN},
    "/metrics": {"GET": READ},
    "/openapi.json": {"GET": READ},
    "/partition": {"POST": PREDICT},
    "/plan": {"POST": PREDICT},
    "/predict": {"POST": PREDICT},
    "/predict/batch": {"POST": PREDICT},
    "/predictions": {"GET": READ},
    "/predictions/{prediction_id}": {"GET": READ},
    "/predictions/{prediction_id}.pdf": {"GET": READ},
    "/predictors": {"GET": READ},
    "/predictors/{name}/rollback": {"POST": ADMIN},
    "/prices": {"GET": READ, "POST": CONTRIBUTE},
    "/readyz": {"GET": OPEN},
    "/retrain": {"POST": CONTRIBUTE},
    "/scaling": {"GET": PREDICT},
    "/scheduler/filter": {"POST": PREDICT},
    "/scheduler/prioritize": {"POST": PREDICT},
    "/serving": {"GET": PREDICT},
    "/sign-in": {"GET": OPEN, "POST": OPEN},
    "/sign-out": {"POST": OPEN},
    "/uploads": {"GET": READ},
    "/static/{path:path}": {"GET": OPEN},
}

_EXACT = {path: needs for path, needs in ROLES.items() if "{" not in path}
_TEMPLATES = [(compile_path(path)[0], needs) for path, needs in ROLES.items() if "{" in path]


def role_for(method: str, path: str) -> Role | None:
    """Return the least role for a request; READ for unknown routes, so that strangers cannot probe paths."""
    needs = _EXACT.get(path)
    if needs is None:
        needs = next((needs for template, needs in _TEMPLATES if template.match(path)), {})
    return needs.get("GET" if method == "HEAD" else method, READ)
