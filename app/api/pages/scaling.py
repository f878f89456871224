"""GET /scaling: how the throughput of a network grows with devices and with the batch."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from app.api.deps import HolderDep, SettingsDep
from app.api.pages.shell import AskedDep, as_json, command, page, wants_json
from app.errors import GpucastError
from app.services.pages.form import controls
from app.services.pages.scaling import BATCHES, DEVICES, MOST_GPUS, scaling
from app.wire.predict_body import read_request

router = APIRouter(include_in_schema=False)


@router.get("/scaling")
def show(request: Request, asked: AskedDep, holder: HolderDep, settings: SettingsDep) -> Response:
    """Throughput over devices and over batches, on the first GPUs asked for."""
    query = request.query_params
    typed = {"devices": query.get("devices") or DEVICES, "batches": query.get("batches") or BATCHES}
    strong = query.get("strong") == "true"
    sizes = [*typed.items(), *([("strong", "true")] if strong else [])]
    shown: dict[str, Any] = {"form": controls(holder.engine, asked), "typed": typed, "strong": strong}
    shown |= {"pairs": asked.pairs, "here": [*asked.pairs, *sizes], "most": MOST_GPUS}
    if asked.waits and not wants_json(request):
        return page(request, "scaling.html", waits=True, **shown)
    try:
        body = asked.body()
        gpus = body["gpus"]
        body["gpus"] = gpus if gpus == "all" else gpus[:MOST_GPUS]
        wanted = read_request(msgspec.json.encode(body))
        points = scaling(holder.snapshot, wanted, strong=strong, max_rows=settings.max_batch_rows, **typed)
    except GpucastError as error:
        if wants_json(request):
            raise
        complaints = asked.complaints(error) | {
            str(item.loc[0]): [item.msg] for item in error.errors if item.loc and item.loc[0] in typed
        }
        return page(request, "scaling.html", status=error.status, error=error, complaints=complaints, **shown)
    if wants_json(request):
        return as_json(points)
    return page(
        request,
        "scaling.html",
        points=points,
        left=len(gpus) - len(body["gpus"]),
        curl=command(request, "/predict", body),
        **shown,
    )
