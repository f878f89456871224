"""POST /compare: rank GPUs on one workload."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from app.api.current import current
from app.api.deps import BodyDep, DatabaseDep, GraphsDep, HolderDep, SettingsDep
from app.api.openapi import json_answer, json_body, ref
from app.api.saving import saved_on_request
from app.engine.gpu_rows import Snapshot
from app.services.compare.answers import answer_compare
from app.services.compare.request import read_compare
from app.wire.compare_form import COMPARE_EXAMPLE, CompareResponse
from app.wire.served_choice_form import ServingCompareResponse

router = APIRouter(tags=["Deciding"])

_DESCRIPTION = (
    "A workload on many GPUs, ranked by latency, throughput, cost or energy, with intervals, the Pareto set, and which"
    " GPUs are statistically tied. Prices come from the request or from POST /prices; there are no default prices."
)


@router.post(
    "/compare",
    description=_DESCRIPTION,
    openapi_extra=json_body(ref("CompareRequest"), COMPARE_EXAMPLE),
    response_class=Response,
    responses={
        200: json_answer("The GPUs in ranked order", {"anyOf": [ref("CompareResponse"), ref("ServingCompareResponse")]})
    },
)
def compare_gpus(
    body: BodyDep, holder: HolderDep, graphs: GraphsDep, settings: SettingsDep, database: DatabaseDep
) -> Response:
    """Compare GPUs on a workload."""
    request, most = read_compare(body), settings.max_batch_rows

    def answered(snapshot: Snapshot) -> CompareResponse | ServingCompareResponse:
        answer = answer_compare(snapshot, request, max_rows=most, graphs=graphs)
        return saved_on_request(database, snapshot, "compare", request, answer)

    answer = current(holder, answered)
    return Response(msgspec.json.encode(answer), media_type="application/json")
