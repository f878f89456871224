"""Routes of the latency predictor of llm-d's inference gateway, below a saved prediction of a served model."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from app.api.deps import BodyDep, CallerDep, HolderDep, RuntimeDep, SavedId, Share, as_json, current
from app.api.openapi import json_answer, json_route, ref
from app.api.work_queues import use_database
from app.runtime.sized_cache import StoredCache
from app.services.serving.next_request import NextRequests, next_requests, status
from app.store import quotes
from app.wire.decoding import decode
from app.wire.llm_d_form import (
    STATE_EXAMPLE,
    STATES_EXAMPLE,
    EngineState,
    EngineStates,
    NextRequestsTimes,
    NextRequestTimes,
    PredictorStatus,
)

_STATE, _STATES = msgspec.json.Decoder(EngineState), msgspec.json.Decoder(EngineStates)

router = APIRouter(tags=["Deciding"], prefix="/llm-d/{prediction_id}")

_ABOUT = (
    " For llm-d's inference gateway, with PREDICTION_SERVER_URL .../llm-d/ID: ID is a prediction of kind serving that"
    " was saved; its model, GPU, stack, settings and mean answer hold of the engines, its load does not."
)


async def _engine(
    call: Request,
    prediction_id: SavedId,
    runtime: RuntimeDep,
    holder: HolderDep,
    caller: CallerDep,
    share: Share = None,
) -> Callable[[], NextRequests]:
    """Return what returns the engine of a saved prediction. Saved ones never change, so each is read once and kept."""
    kept: StoredCache[tuple[str, str]] = call.app.saved

    def read() -> tuple[tuple[str, str], int]:
        use_database()
        with runtime.database.begin() as connection:
            row = quotes.get(connection, prediction_id, caller, share)
        return (row.kind, row.request), len(row.request)

    def engine() -> NextRequests:
        kind, request = kept.get((prediction_id, caller, share), read, check=read)
        most = runtime.settings.max_batch_rows
        return current(holder, lambda snapshot: next_requests(snapshot, kind, request, max_rows=most))

    return engine


EngineDep = Annotated[Callable[[], NextRequests], Depends(_engine)]
_BULK = json_route(EngineStates, STATES_EXAMPLE, "Their times, in the same order", NextRequestsTimes)


@router.post(
    "/predict",
    description=f"Times of a request that an engine in this state gets next.{_ABOUT}",
    **json_route(EngineState, STATE_EXAMPLE, "The times of the request", NextRequestTimes),
)
def predict_next(body: BodyDep, engine: EngineDep) -> Response:
    """Predict the next request of an engine."""
    state = decode(_STATE, body, example=STATE_EXAMPLE)
    return as_json(engine().times(state))


@router.post(
    "/predict/bulk",
    description=f"Times of requests, each with the state of an engine.{_ABOUT}",
    **_BULK,
)
@router.post(
    "/predict/bulk/strict",
    name="predict_next_of_several_strictly",
    description=f"The same as /predict/bulk, which refuses all requests for a wrong one, too.{_ABOUT}",
    **_BULK,
)
def predict_next_of_several(body: BodyDep, engine: EngineDep) -> Response:
    """Predict the next request of several engines."""
    began, states = time.perf_counter(), decode(_STATES, body, example=STATES_EXAMPLE).requests
    requests = engine()
    times = [requests.times(state) for state in states]
    answer = NextRequestsTimes(
        predictions=times,
        total_requests=len(states),
        successful_predictions=len(times),
        processing_time_ms=1e3 * (time.perf_counter() - began),
    )
    return as_json(answer)


@router.get(
    "/status",
    response_class=Response,
    responses={200: json_answer("Ready", ref(PredictorStatus))},
)
def get_status(engine: EngineDep) -> Response:
    """State of the predictor, which the gateway asks for first."""
    engine()
    return as_json(status())
