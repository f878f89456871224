"""GET /serving: an LLM behind a serving engine, under a load and around it."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from app.api.deps import HolderDep, SettingsDep
from app.dashboard.charts.answers import served_curves_chart, served_ranking_chart
from app.dashboard.charts.drawing import Drawing
from app.dashboard.charts.titles import workload_title
from app.dashboard.form_controls import controls
from app.dashboard.routes.shell import as_json, as_picture, command, page, refused, wants_answer, wants_json, wants_svg
from app.dashboard.serving import (
    MOST_CURVES,
    ServingView,
    cheapest,
    limits_of,
    missed,
    model_pairs,
    serving_address,
    serving_body,
    serving_view,
    with_replicas,
)
from app.dashboard.serving_charts import first_token_chart, speed_chart
from app.errors import GpucastError
from app.services.compare.served_curves import PERCENTILES, Curves

router = APIRouter(include_in_schema=False)


@router.get("/serving")
def show(request: Request, holder: HolderDep, settings: SettingsDep) -> Response:
    """The comparison of POST /compare, kind `serving`, with curves; an example if the address has no model."""
    address = serving_address(request.query_params.multi_items())
    form = controls(holder.engine, address)
    shown: dict[str, Any] = {
        "form": form,
        "pairs": address.pairs,
        "elsewhere": model_pairs(address),
        "percentiles": PERCENTILES,
        "most": MOST_CURVES,
    }
    try:
        limits = limits_of(address)
        body = serving_body(address)
        view = serving_view(holder.snapshot, msgspec.json.encode(body), limits, max_rows=settings.max_batch_rows)
    except GpucastError as error:
        if wants_answer(request):
            raise
        return refused(request, "serving.html", address, error, **shown)
    if wants_json(request):
        return as_json(view)
    if wants_svg(request):
        return as_picture(_drawn(view, body["workload"], request.query_params.get("chart") == "ranking"))
    best = cheapest(view.curves)

    def named(one: Curves) -> str:
        return f"{form.name_of(one.gpu)}\u00a0×\u00a0{one.devices}"  # noqa: RUF001

    marked = best.gpu if best else ""
    return page(
        request,
        "serving.html",
        answer=view.comparison,
        curves=view.curves,
        at={one.gpu: one for one in view.curves},
        limits=limits,
        best=best,
        speed=speed_chart(view.curves, limits, named, marked),
        first_token=first_token_chart(view.curves, limits, named, marked),
        named=named,
        missed=missed,
        more_replicas=lambda row: with_replicas(row, address),
        body=msgspec.json.encode(body).decode(),
        curl=command(request, "/compare", body),
        **shown,
    )


def _drawn(view: ServingView, workload: dict[str, Any], ranking: bool) -> Drawing:
    """Return the chart of the ranking under the load, or of the curves over loads."""
    if ranking:
        return served_ranking_chart(view.comparison, workload_title(workload))
    return served_curves_chart(view.curves, workload_title({**workload, "load": None}))
