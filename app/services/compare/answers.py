"""Answers of POST /compare and POST /plan, by the kind of workload: one run, or a served model under a load."""

from __future__ import annotations

from datetime import date

from app.engine.prices import today_utc
from app.engine.snapshot import Snapshot
from app.services.compare.compare import compare
from app.services.compare.job_plan import choose_gpus, to_compare_request
from app.services.compare.request import to_predict_request
from app.services.compare.served_compare import compare_served
from app.services.compare.served_plan import plan_served
from app.services.graphs.graph_store import Graphs
from app.wire.compare_form import CompareRequest, CompareResponse, ServingCompareResponse
from app.wire.job_plan_form import PlanRequest, PlanResponse, ServingPlanResponse
from app.wire.serving_form import ServingRequest


def answer_compare(
    snapshot: Snapshot,
    request: CompareRequest,
    *,
    max_rows: int,
    graphs: Graphs | None = None,
    today: date | None = None,
) -> CompareResponse | ServingCompareResponse:
    """Return the ranked GPUs. Raises NotFound, BadInput, TooLarge or NotTrained with what to send instead."""
    if _is_served(request.workload):
        asked = to_predict_request(request)
        assert isinstance(asked, ServingRequest)
        return compare_served(snapshot, request, asked, max_rows=max_rows, today=today or today_utc())
    return compare(snapshot, request, max_rows=max_rows, graphs=graphs, today=today)


def answer_plan(
    snapshot: Snapshot,
    request: PlanRequest,
    *,
    max_rows: int,
    graphs: Graphs | None = None,
    today: date | None = None,
) -> PlanResponse | ServingPlanResponse:
    """Return the ranked choices. Raises NotFound, BadInput, TooLarge or NotTrained with what to send instead."""
    if _is_served(request.workload):
        comparison = to_compare_request(request)
        asked = to_predict_request(comparison)
        assert isinstance(asked, ServingRequest)
        return plan_served(snapshot, request, comparison, asked, today=today or today_utc())
    return choose_gpus(snapshot, request, max_rows=max_rows, graphs=graphs, today=today)


def _is_served(workload: dict[str, object]) -> bool:
    return workload.get("kind") == "serving"
