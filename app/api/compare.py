"""One workload on many GPUs: which is fastest, cheapest, most frugal."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from app.api.deps import GraphsDep, HolderDep, SettingsDep
from app.api.openapi import json_answer, json_body, ref
from app.api.predict import moved
from app.errors import NotFound
from app.services.compare.compare import compare
from app.services.compare.form import COMPARE_EXAMPLE
from app.services.compare.request import read_compare

router = APIRouter(tags=["Deciding"])

_DESCRIPTION = (
    "A workload on many GPUs, ranked by latency, throughput, cost or energy, with intervals, the Pareto set, and which"
    " GPUs cannot be told apart. Prices come from the request or from POST /prices: none are known otherwise."
)


async def _body(request: Request) -> bytes:
    return await request.body()


@router.post(
    "/compare",
    description=_DESCRIPTION,
    openapi_extra=json_body(ref("CompareRequest"), COMPARE_EXAMPLE),
    response_class=Response,
    responses={200: json_answer("The GPUs in their order", ref("CompareResponse"))},
)
def compare_gpus(
    body: Annotated[bytes, Depends(_body)], holder: HolderDep, graphs: GraphsDep, settings: SettingsDep
) -> Response:
    """Compare GPUs on a workload."""
    request, before = read_compare(body), holder.snapshot
    try:
        answer = compare(before, request, max_rows=settings.max_batch_rows, graphs=graphs)
    except NotFound:  # a GPU that another process has just registered
        if not moved(holder, before):
            raise
        answer = compare(holder.snapshot, request, max_rows=settings.max_batch_rows, graphs=graphs)
    return Response(msgspec.json.encode(answer), media_type="application/json")
