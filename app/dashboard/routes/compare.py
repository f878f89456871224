"""GET /: one workload on many GPUs, ranked, the first page of a visitor; GET /scaling: its throughput over sizes.

A point of /scaling, over devices and over batch sizes, is an answer of POST /predict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from app.api.deps import DatabaseDep, GraphsDep, HolderDep, SettingsDep, as_json
from app.dashboard.address import compare_body
from app.dashboard.charts.answers import ranking_chart, scaling_chart, workload_title
from app.dashboard.charts.batch_curves import batch_curves
from app.dashboard.charts.drawing import Drawing
from app.dashboard.choices import controls
from app.dashboard.ranking import RANK_LABELS, decimals_of, figures_of, groups_of, split_controls
from app.dashboard.routes.shell import (
    AddressDep,
    as_picture,
    command,
    page,
    refused,
    wants_answer,
    wants_json,
    wants_svg,
)
from app.engine.power import power_notes
from app.engine.snapshot import Snapshot
from app.errors import BadInput, FieldError, GpucastError
from app.services.compare.compare import compare
from app.services.compare.request import read_compare
from app.services.models.scaling import Point, scaling_curves
from app.wire.network_form import ModelRequest
from app.wire.predict_body import Request as AnyRequest
from app.wire.predict_body import read_request

router = APIRouter(include_in_schema=False)


@router.get("/")
def show(
    request: Request,
    address: AddressDep,
    holder: HolderDep,
    graphs: GraphsDep,
    settings: SettingsDep,
    database: DatabaseDep,
) -> Response:
    """The ranking of POST /compare; an example if the address has no workload."""
    form = controls(holder.engine, address)
    shown: dict[str, Any] = {"form": form, "pairs": address.pairs, "rank_labels": RANK_LABELS}
    if address.incomplete and not wants_answer(request):
        return page(request, "compare.html", waits=True, **shown)
    try:
        body = compare_body(address)
        compare_request = read_compare(msgspec.json.encode(body))
        answer = compare(holder.snapshot, compare_request, max_rows=settings.max_batch_rows, graphs=graphs)
    except GpucastError as error:
        if wants_answer(request):
            raise
        return refused(request, "compare.html", address, error, **shown)
    if wants_json(request):
        return as_json(answer)
    if wants_svg(request):
        return as_picture(ranking_chart(answer, workload_title(body["workload"])))
    figures = figures_of(address, answer)
    known = [row for row in answer.ranking if figures[answer.rank_by].of(row)]
    return page(
        request,
        "compare.html",
        answer=answer,
        figures=figures,
        decimals_of=decimals_of,
        ranked=figures[answer.rank_by],
        known=known,
        notes=power_notes((row.power_source for row in answer.ranking), "Energy from power"),
        groups=groups_of(answer.ranking, answer.rank_by),
        ranks={row.gpu: row.rank for row in answer.ranking},
        split=split_controls,
        curves=batch_curves(
            holder.snapshot, database, compare_request, form, answer.ranking, max_rows=settings.max_batch_rows
        ),
        question=command(request, "/compare", body),
        **shown,
    )


# Limits for a readable chart, and for answers within a second.
MOST_GPUS, MOST_SIZES = 6, 10
DEVICES, BATCHES = "1,2,4,8,16", "1,2,4,8,16,32,64"


@dataclass(frozen=True, slots=True)
class Scaling:
    """Points over devices at the requested batch, and over batch sizes on one device."""

    devices: Sequence[Point]
    batches: Sequence[Point]


def scaling(
    snapshot: Snapshot, request: AnyRequest, *, devices: str, batches: str, strong: bool, max_rows: int
) -> Scaling:
    """Return both curves of a network. Raises BadInput for other workloads and invalid lists.

    `strong` splits the requested batch over the devices instead of giving it to each.
    """
    if not isinstance(request, ModelRequest):
        message = "only models by name or configuration have scaling curves"
        raise BadInput(message, errors=[FieldError(("workload",), message)])
    counts, sizes = sizes_of("devices", devices), sizes_of("batches", batches)
    batch = int(request.workload.batch)
    over_devices = scaling_curves(snapshot, request, devices=counts, batches=[batch], strong=strong, max_rows=max_rows)
    return Scaling(over_devices, scaling_curves(snapshot, request, devices=[1], batches=sizes, max_rows=max_rows))


def sizes_of(name: str, text: str) -> list[int]:
    """Return the distinct integers of a comma-separated list, sorted."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    good = all(part.isascii() and part.isdigit() and 1 <= len(part) < 8 and int(part) for part in parts)
    if not parts or not good or len(parts) > MOST_SIZES:
        raise BadInput.at((name,), f"expected one to {MOST_SIZES} comma-separated whole numbers, not {text[:60]!r}")
    return sorted({int(part) for part in parts})


@router.get("/scaling")
def show_scaling(request: Request, address: AddressDep, holder: HolderDep, settings: SettingsDep) -> Response:
    """Throughput over devices and over batch sizes, on the first GPUs of the address."""
    query = request.query_params
    typed = {"devices": query.get("devices") or DEVICES, "batches": query.get("batches") or BATCHES}
    strong = query.get("strong") == "true"
    sizes = [*typed.items(), *([("strong", "true")] if strong else [])]
    shown: dict[str, Any] = {"form": controls(holder.engine, address), "typed": typed, "strong": strong}
    shown |= {"pairs": address.pairs, "here": [*address.pairs, *sizes], "most": MOST_GPUS}
    if address.incomplete and not wants_answer(request):
        return page(request, "scaling.html", waits=True, **shown)
    try:
        body = address.body()
        gpus = body["gpus"]
        body["gpus"] = gpus if gpus == "all" else gpus[:MOST_GPUS]
        predict_request = read_request(msgspec.json.encode(body))
        points = scaling(holder.snapshot, predict_request, strong=strong, max_rows=settings.max_batch_rows, **typed)
    except GpucastError as error:
        if wants_answer(request):
            raise
        own = {str(item.loc[0]): [item.msg] for item in error.errors if item.loc and item.loc[0] in typed}
        complaints = own or address.complaints(error)
        return refused(request, "scaling.html", address, error, complaints=complaints, **shown)
    if wants_json(request):
        return as_json(points)
    if wants_svg(request):
        return as_picture(_drawn(points, body, over_devices=query.get("chart") != "batches", strong=strong))
    return page(
        request,
        "scaling.html",
        points=points,
        left=len(gpus) - len(body["gpus"]),
        question=command(request, "/predict", body),
        **shown,
    )


def _drawn(points: Scaling, body: dict[str, Any], *, over_devices: bool, strong: bool) -> Drawing:
    title = workload_title({**body["workload"], "batch": None})  # the axes have the batch
    shown = points.devices if over_devices else points.batches
    return scaling_chart(shown, title, over_devices=over_devices, strong=strong)
