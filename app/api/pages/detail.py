"""GET /detail: one workload on one GPU, down to its operators."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from app.api.deps import GraphsDep, HolderDep, SettingsDep
from app.api.pages.shell import AskedDep, as_json, command, page, wants_json
from app.errors import GpucastError
from app.services.pages.detail import MOST_OPERATORS, answered, memory_parts, roofs, slowest
from app.services.pages.form import controls
from app.wire.predict_body import read_request

router = APIRouter(include_in_schema=False)


@router.get("/detail")
def show(request: Request, asked: AskedDep, holder: HolderDep, graphs: GraphsDep, settings: SettingsDep) -> Response:
    """The roofline with the workload's operators on it, the time by group, memory by part, and phases."""
    shown: dict[str, Any] = {"form": controls(holder.engine, asked), "on": asked.on, "pairs": asked.pairs}
    if asked.waits and not wants_json(request):
        return page(request, "detail.html", waits=True, **shown)
    try:
        body = asked.body(gpus=asked.one(), detail=True)
        one = answered(
            holder.snapshot,
            read_request(msgspec.json.encode(body)),
            max_rows=settings.max_batch_rows,
            graphs=graphs,
        )
        if wants_json(request):
            return as_json(one)
        found = one.predictions[0]
    except GpucastError as error:
        if wants_json(request):
            raise
        complaints = asked.complaints(error)
        return page(request, "detail.html", status=error.status, error=error, complaints=complaints, **shown)
    return page(
        request,
        "detail.html",
        curl=command(request, "/predict", body),
        one=found,
        operators=slowest(found),
        most=MOST_OPERATORS,
        roofs=roofs(found.operators or []),
        memory=memory_parts(found),
        **shown,
    )
