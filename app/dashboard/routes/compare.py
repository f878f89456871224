"""GET /: one workload on many GPUs, ranked; the first page of a visitor."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from app.api.deps import GraphsDep, HolderDep, SettingsDep, as_json
from app.dashboard.address import compare_body
from app.dashboard.charts.answers import ranking_chart, workload_title
from app.dashboard.charts.page_curves import batch_curves
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
from app.errors import GpucastError
from app.services.compare.compare import compare
from app.services.compare.request import read_compare

router = APIRouter(include_in_schema=False)


@router.get("/")
def show(
    request: Request, address: AddressDep, holder: HolderDep, graphs: GraphsDep, settings: SettingsDep
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
        curves=batch_curves(holder.snapshot, compare_request, form, answer.ranking, max_rows=settings.max_batch_rows),
        curl=command(request, "/compare", body),
        **shown,
    )
