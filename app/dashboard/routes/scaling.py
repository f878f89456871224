"""GET /scaling: throughput of a network over devices and over batch sizes, each point a POST /predict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from app.api.deps import HolderDep, SettingsDep, as_json
from app.dashboard.charts.answers import scaling_chart, workload_title
from app.dashboard.charts.drawing import Drawing
from app.dashboard.choices import controls
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
from app.engine.snapshot import Snapshot
from app.errors import BadInput, FieldError, GpucastError
from app.services.models.scaling import Point, scaling_curves
from app.wire.network_form import ModelRequest
from app.wire.predict_body import Request as AnyRequest
from app.wire.predict_body import read_request

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
        message = f"expected one to {MOST_SIZES} comma-separated whole numbers, not {text[:60]!r}"
        raise BadInput(f"{name}: {message}", errors=[FieldError((name,), message)])
    return sorted({int(part) for part in parts})


router = APIRouter(include_in_schema=False)


@router.get("/scaling")
def show(request: Request, address: AddressDep, holder: HolderDep, settings: SettingsDep) -> Response:
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
        curl=command(request, "/predict", body),
        **shown,
    )


def _drawn(points: Scaling, body: dict[str, Any], *, over_devices: bool, strong: bool) -> Drawing:
    title = workload_title({**body["workload"], "batch": None})  # the axes have the batch
    shown = points.devices if over_devices else points.batches
    return scaling_chart(shown, title, over_devices=over_devices, strong=strong)
