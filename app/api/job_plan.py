"""POST /plan: which GPU and how many meet a deadline, budget or throughput, and the time limit to request."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from app.api.current import current
from app.api.deps import BodyDep, DatabaseDep, GraphsDep, HolderDep, SettingsDep
from app.api.openapi import json_answer, json_body, ref
from app.api.saving import saved_on_request
from app.engine.gpu_rows import Snapshot
from app.services.compare.answers import answer_plan
from app.wire.job_plan_form import PLAN_EXAMPLE, PlanResponse, read_plan
from app.wire.served_choice_form import ServingPlanResponse

router = APIRouter(tags=["Deciding"])

_DESCRIPTION = (
    "The cheapest type and count of GPU that meets a deadline, a budget or a throughput with a stated probability; the"
    " time limit to request from a scheduler; which of two choices is likely faster; and the effect of more bandwidth,"
    " clock or memory."
)


@router.post(
    "/plan",
    description=_DESCRIPTION,
    openapi_extra=json_body(ref("PlanRequest"), PLAN_EXAMPLE),
    response_class=Response,
    responses={200: json_answer("The choices in order", {"anyOf": [ref("PlanResponse"), ref("ServingPlanResponse")]})},
)
def plan_job(
    body: BodyDep, holder: HolderDep, graphs: GraphsDep, settings: SettingsDep, database: DatabaseDep
) -> Response:
    """Plan a job."""
    request, most = read_plan(body), settings.max_batch_rows

    def answered(snapshot: Snapshot) -> PlanResponse | ServingPlanResponse:
        answer = answer_plan(snapshot, request, max_rows=most, graphs=graphs)
        return saved_on_request(database, snapshot, "plan", request, answer)

    answer = current(holder, answered)
    return Response(msgspec.json.encode(answer), media_type="application/json")
