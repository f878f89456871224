"""Where to cut a network over unequal GPUs."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from app.api.deps import GraphsDep, HolderDep
from app.api.openapi import json_answer, json_body, ref
from app.api.predict import moved
from app.errors import NotFound
from app.services.models.partition import cut_network, read_partition
from app.services.models.partition_form import PARTITION_EXAMPLE

router = APIRouter(tags=["Prediction"])

_DESCRIPTION = (
    "A model or graph over two GPUs or more, in the order that requests pass them: the cuts whose slowest stage is the"
    " fastest, within each GPU's memory, with the time to pass activations on."
)


async def _body(request: Request) -> bytes:
    return await request.body()


@router.post(
    "/partition",
    description=_DESCRIPTION,
    openapi_extra=json_body(ref("PartitionRequest"), PARTITION_EXAMPLE),
    response_class=Response,
    responses={200: json_answer("The best cut", ref("PartitionResponse"))},
)
def plan_partition(body: Annotated[bytes, Depends(_body)], holder: HolderDep, graphs: GraphsDep) -> Response:
    """Cut a network over GPUs."""
    request, asked = read_partition(body)
    before = holder.snapshot
    try:
        answer = cut_network(before, request, asked, graphs)
    except NotFound:  # a GPU that another process has just registered
        if not moved(holder, before):
            raise
        answer = cut_network(holder.snapshot, request, asked, graphs)
    return Response(msgspec.json.encode(answer), media_type="application/json")
