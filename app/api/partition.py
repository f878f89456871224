"""POST /partition: partition a network over unequal GPUs."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from app.api.deps import BodyDep, GraphsDep, HolderDep, as_json, current
from app.api.openapi import json_answer, json_body, ref
from app.services.models.partition import partition_network, read_partition
from app.wire.partition_form import PARTITION_EXAMPLE

router = APIRouter(tags=["Prediction"])

_DESCRIPTION = (
    "A model or graph over two GPUs or more, in pipeline order: the partition whose slowest stage is the"
    " fastest, within each GPU's memory, with the time to pass activations on."
)


@router.post(
    "/partition",
    description=_DESCRIPTION,
    openapi_extra=json_body(ref("PartitionRequest"), PARTITION_EXAMPLE),
    response_class=Response,
    responses={200: json_answer("The best partition", ref("PartitionResponse"))},
)
def plan_partition(body: BodyDep, holder: HolderDep, graphs: GraphsDep) -> Response:
    """Partition a network over GPUs."""
    request, predict_request = read_partition(body)
    return as_json(current(holder, lambda snapshot: partition_network(snapshot, request, predict_request, graphs)))
