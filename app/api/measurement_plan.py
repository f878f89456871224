"""Routes of measurement plans: what to measure next on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query
from starlette.responses import Response

from app.api.deps import BodyDep, DatabaseDep, GraphsDep, HolderDep, SettingsDep
from app.api.gpus import GpuName
from app.api.openapi import json_answer, json_body, ref
from app.errors import BadInput, FieldError
from app.services.measurements.measurement_plan import plan_measurements, plan_operators, read_plan_request
from app.wire.measurement_plan_form import MOST_MEASUREMENTS, PLAN_EXAMPLE, MeasurementPlan, MeasurementPlanRequest

router = APIRouter(tags=["GPUs"])

_DESCRIPTION = (
    "The operator rows that shrink the workload's intervals most when measured on this GPU, best first, with"
    " the expected error before and after each. Measure them and send them to POST /measurements: `auto` uses them in"
    " its next answer."
)
_ANSWER: dict[int | str, dict[str, Any]] = {200: json_answer("The rows to measure", ref("MeasurementPlan"))}
_Names = Annotated[list[str] | None, Query(max_length=40)]
_Size = Annotated[int, Query(ge=1, le=2**24)]


def _answered(plan: MeasurementPlan) -> Response:
    return Response(msgspec.json.encode(plan), media_type="application/json")


def _refuse_parameters(parameters: Mapping[str, object], why: str) -> None:
    """Raise BadInput that names the parameters that are set."""
    errors = [FieldError((name,), f"{name} {why}") for name, value in parameters.items() if value is not None]
    if errors:
        raise BadInput(f"{errors[0].msg}.", errors=errors)


@router.get("/gpus/{name}/plan", description=_DESCRIPTION, response_class=Response, responses=_ANSWER)
def plan_of_gpu(  # noqa: PLR0913, PLR0917  (what a query string can say)  # (query parameters)
    name: GpuName,
    holder: HolderDep,
    database: DatabaseDep,
    graphs: GraphsDep,
    settings: SettingsDep,
    count: Annotated[int, Query(ge=1, le=MOST_MEASUREMENTS, description="Number of rows")] = 32,
    op: Annotated[_Names, Query(description="Only these operators, in usual shapes; default: a mix")] = None,
    dtype: Annotated[_Names, Query(description="Only these dtypes; for a model, its dtype")] = None,
    model: Annotated[str | None, Query(description="Name of a built-in network instead")] = None,
    mode: Annotated[str | None, Query(description="Mode of the network: inference, training, prefill, decode")] = None,
    batch: Annotated[_Size | None, Query(description="Batch size of the network, sequences or images")] = None,
    sequence: Annotated[_Size | None, Query(description="Tokens per sequence of the network")] = None,
    image_size: Annotated[_Size | None, Query(description="Image side of the network, pixels")] = None,
) -> Response:
    """Plan what to measure next on a GPU."""
    run_options = {"mode": mode, "batch": batch, "sequence": sequence, "image_size": image_size}
    if model is None:
        _refuse_parameters(run_options, "is only valid with model")
        return _answered(plan_operators(holder.snapshot, database, name, op or (), dtype or (), count))
    _refuse_parameters({"op": op}, "cannot be combined with model")
    run_options |= {"dtype": dtype[-1] if dtype else None}
    workload: dict[str, Any] = {"kind": "model", "name": model} | {
        k: v for k, v in run_options.items() if v is not None
    }
    request = MeasurementPlanRequest(workload=workload, count=count)
    return _answered(
        plan_measurements(holder.snapshot, database, name, request, max_rows=settings.max_batch_rows, graphs=graphs)
    )


@router.post(
    "/gpus/{name}/plan",
    description=_DESCRIPTION,
    openapi_extra=json_body(ref("MeasurementPlanRequest"), PLAN_EXAMPLE),
    response_class=Response,
    responses=_ANSWER,
)
def plan_for_workload(
    name: GpuName,
    body: BodyDep,
    holder: HolderDep,
    database: DatabaseDep,
    graphs: GraphsDep,
    settings: SettingsDep,
) -> Response:
    """Plan what to measure next on a GPU for a workload."""
    request = read_plan_request(body)
    return _answered(
        plan_measurements(holder.snapshot, database, name, request, max_rows=settings.max_batch_rows, graphs=graphs)
    )
