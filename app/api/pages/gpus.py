"""GET /catalogue and /catalogue/{name}: the GPUs, as in GET /gpus."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.api.deps import HolderDep
from app.api.gpus import GpuName
from app.api.pages.shell import page
from app.errors import NotFound
from app.services import gpus
from app.tables.complete import spec_to_dict

router = APIRouter(include_in_schema=False)


@router.get("/catalogue")
def show(request: Request, holder: HolderDep) -> Response:
    """Every GPU of the catalogue with its main figures."""
    return page(request, "catalogue.html", specs=holder.engine.catalog.specs)


@router.get("/catalogue/{name}")
def show_one(request: Request, name: GpuName, holder: HolderDep) -> Response:
    """One GPU: all figures with their provenance."""
    try:
        spec = gpus.find(holder, name)
    except NotFound as error:
        return page(request, "catalogue.html", status=error.status, specs=holder.engine.catalog.specs, error=error)
    figures = spec_to_dict(spec)
    return page(request, "gpu.html", spec=spec, figures=figures, provenance=figures.pop("provenance"))
