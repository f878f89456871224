"""Save an answer (`save: true`) with the versions that it comes from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec
from msgspec import structs
from sqlalchemy import Connection

from app import __version__
from app.engine.engine import POOLED, Engine
from app.engine.snapshot import Snapshot
from app.errors import TooLarge
from app.store import measurements, quotes
from app.store.session import Database
from app.tables.complete import spec_to_dict
from app.wire.compare_form import CompareRequest, CompareResponse, ServingCompareResponse
from app.wire.job_plan_form import PlanRequest, PlanResponse, ServingPlanResponse
from app.wire.predict_body import Request, Response

MAX_BYTES = 4 * 2**20
SavableRequest = Request | CompareRequest | PlanRequest
Saved = Response | CompareResponse | PlanResponse | ServingCompareResponse | ServingPlanResponse
Answer = TypeVar("Answer", bound=Saved)


def save_answer(database: Database, snapshot: Snapshot, kind: str, request: SavableRequest, answer: Answer) -> Answer:
    """Save an answer and return it with its `id`. Raises TooLarge if it and its request exceed MAX_BYTES."""
    body = msgspec.to_builtins(request)
    gpus = _answered_gpus(answer)
    if body["gpus"] == "all":  # the catalogue may change
        body["gpus"] = gpus or "all"
    texts = [msgspec.json.encode(item).decode() for item in (body, answer)]
    size = sum(map(len, texts))
    if size > MAX_BYTES:
        raise TooLarge(f"At most {MAX_BYTES:,} bytes of request and answer can be saved; these have {size:,}.")
    named = [*gpus, *(row["gpu"] for row in body["workload"].get("measured", ()))]
    with database.begin() as connection:
        versions = _versions(connection, snapshot.engine, request.predictor, gpus, named)
        workload = str(body["workload"]["kind"])
        saved_id = quotes.insert(
            connection, kind=kind, workload=workload, request=texts[0], answer=texts[1], versions=versions
        )
    return structs.replace(answer, id=saved_id)


def _answered_gpus(answer: Saved) -> list[str]:
    """Return the ids of an answer's GPUs, in its order."""
    if isinstance(answer, CompareResponse | ServingCompareResponse):
        return [row.gpu for row in answer.ranking]
    if isinstance(answer, PlanResponse | ServingPlanResponse):
        return [row.gpu for row in answer.choices]
    return [row.gpu for row in answer.predictions]


def _versions(
    connection: Connection, engine: Engine, predictor: str, gpus: Iterable[str], named: Iterable[Any]
) -> dict[str, Any]:
    """Return the versions behind the answer; inline specifications are already in the request."""
    keys = {(predictor, gpu if (predictor, gpu) in engine.served else POOLED) for gpu in gpus}
    specs = [engine.catalog.find(name) for name in named if isinstance(name, str)]
    catalogued = {spec.id: spec_to_dict(spec) for spec in specs if spec is not None and spec in engine.catalog.specs}
    return {
        "code": __version__,
        "revision": engine.revision,
        "predictors": [
            {"predictor": name, "gpu": None if gpu == POOLED else gpu, "version": engine.served[name, gpu].version}
            for name, gpu in sorted(keys)
        ],
        "gpus": catalogued,
        "measurements": stored_measurements(connection),
    }


def stored_measurements(connection: Connection) -> int:
    """Return the number of stored measurements."""
    return sum(measurements.counts(connection).values())
