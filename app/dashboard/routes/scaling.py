"""GET /scaling: throughput of a network over devices and over batch sizes."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from app.api.deps import HolderDep, SettingsDep
from app.dashboard.charts.answers import scaling_chart
from app.dashboard.charts.drawing import Drawing
from app.dashboard.charts.titles import workload_title
from app.dashboard.form_controls import controls
from app.dashboard.routes.shell import (
    AddressDep,
    as_json,
    as_picture,
    command,
    page,
    refused,
    wants_answer,
    wants_json,
    wants_svg,
)
from app.dashboard.scaling import BATCHES, DEVICES, MOST_GPUS, Scaling, scaling
from app.errors import GpucastError
from app.wire.predict_body import read_request

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
