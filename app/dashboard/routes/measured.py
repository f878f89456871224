"""GET /measured: stored measurements and retrainings, as in GET /measurements and GET /jobs."""

from __future__ import annotations

from typing import Any, get_args

from fastapi import APIRouter, Request
from pydantic import ValidationError
from starlette.responses import Response

from app.api.deps import DatabaseDep, HolderDep
from app.api.jobs import list_jobs
from app.api.measurements import MeasurementQuery, list_measurements
from app.dashboard.routes.shell import page
from app.errors import BadInput, FieldError, GpucastError
from app.wire.names import near_names

router = APIRouter(include_in_schema=False)

FILTERS = ("gpu", "kind", "name", "software", "source")
ROWS = 50


@router.get("/measured")
def show(request: Request, database: DatabaseDep, holder: HolderDep) -> Response:
    """A page of measurements, filtered, and the latest jobs."""
    parameters = {name: value for name, value in request.query_params.items() if value}
    jobs = list_jobs(database).items
    shown: dict[str, Any] = {
        "typed": {name: parameters.get(name, "") for name in FILTERS},
        "jobs": jobs,
        "pairs": list(parameters.items()),
    }
    try:
        rows = list_measurements(_query({"limit": str(ROWS)} | parameters), database, holder)
    except GpucastError as error:
        complaints = {str(item.loc[0]): [item.msg] for item in error.errors} or {"gpu": [error.detail]}
        return page(request, "measured.html", status=error.status, error=error, complaints=complaints, **shown)
    return page(request, "measured.html", stored=rows, **shown)


def _query(parameters: dict[str, str]) -> MeasurementQuery:
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
