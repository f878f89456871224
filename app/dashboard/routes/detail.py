"""GET /detail: one workload on one GPU, down to its operators."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from app.api.deps import GraphsDep, HolderDep, SettingsDep
from app.dashboard.detail import MOST_OPERATORS, memory_parts, predict, roofs, slowest
from app.dashboard.form_controls import controls
from app.dashboard.routes.shell import AddressDep, as_json, command, page, refused, wants_json
from app.errors import GpucastError
from app.wire.predict_body import read_request

router = APIRouter(include_in_schema=False)


@router.get("/detail")
def show(
    request: Request, address: AddressDep, holder: HolderDep, graphs: GraphsDep, settings: SettingsDep
) -> Response:
    """The roofline with the workload's operators, and time, memory and phases by part."""
    shown: dict[str, Any] = {
        "form": controls(holder.engine, address),
        "on": address.selected_gpu,
        "pairs": address.pairs,
    }
    if address.incomplete and not wants_json(request):
        return page(request, "detail.html", waits=True, **shown)
    try:
        body = address.body(gpus=address.selected_gpus(), detail=True)
        answer = predict(
            holder.snapshot,
            read_request(msgspec.json.encode(body)),
            max_rows=settings.max_batch_rows,
            graphs=graphs,
        )
        if wants_json(request):
            return as_json(answer)
        prediction = answer.predictions[0]
    except GpucastError as error:
        if wants_json(request):
            raise
        return refused(request, "detail.html", address, error, **shown)
    return page(
        request,
        "detail.html",
        curl=command(request, "/predict", body),
        one=prediction,
        operators=slowest(prediction),
        most=MOST_OPERATORS,
        roofs=roofs(prediction.operators or []),
        memory=memory_parts(prediction),
        **shown,
    )
