"""Routes of the Kubernetes scheduler extender."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from app.api.deps import BodyDep, GraphsDep, HolderDep, SettingsDep, as_json, current
from app.api.openapi import json_answer, json_body, ref
from app.config import Settings
from app.engine.snapshot import Snapshot
from app.services.compare.compare import compare
from app.services.graphs.graph_store import Graphs
from app.services.scheduling.extender import (
    EXTENDER_EXAMPLE,
    Compare,
    filter_pod_nodes,
    read_extender_args,
    score_nodes,
)
from app.wire.compare_form import CompareRequest, CompareResponse

router = APIRouter(tags=["Deciding"])

_QUESTION = json_body({"type": "object", "description": "ExtenderArgs of kube-scheduler/extender/v1"}, EXTENDER_EXAMPLE)
_SCORES = {"type": "array", "items": ref("HostPriority")}


@router.post(
    "/scheduler/filter",
    openapi_extra=_QUESTION,
    response_class=Response,
    responses={200: json_answer("The nodes that can run the pod", ref("FilterResult"))},
)
def filter_nodes(body: BodyDep, holder: HolderDep, graphs: GraphsDep, settings: SettingsDep) -> Response:
    """Return the nodes with a GPU that can run a pod's workload, within its memory and deadline."""
    question, compare_on = read_extender_args(body), _compare_with(graphs, settings)
    return as_json(current(holder, lambda snapshot: filter_pod_nodes(question, snapshot, compare_on)))


@router.post(
    "/scheduler/prioritize",
    openapi_extra=_QUESTION,
    response_class=Response,
    responses={200: json_answer("Every node's score, 0 to 10", _SCORES)},
)
def prioritize_nodes(body: BodyDep, holder: HolderDep, graphs: GraphsDep, settings: SettingsDep) -> Response:
    """Return a score of each node's GPU for a pod's workload."""
    question, compare_on = read_extender_args(body), _compare_with(graphs, settings)
    return as_json(current(holder, lambda snapshot: score_nodes(question, snapshot, compare_on)))


def _compare_with(graphs: Graphs, settings: Settings) -> Compare:
    def run(snapshot: Snapshot, request: CompareRequest) -> CompareResponse:
        return compare(snapshot, request, max_rows=settings.max_batch_rows, graphs=graphs)

    return run
