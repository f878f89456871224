"""GET /accuracy: held-out errors of each predictor, as in GET /predictors, and errors on whole workloads."""

from __future__ import annotations

import json
from functools import cache
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from app.api.deps import DatabaseDep, HolderDep, SettingsDep
from app.api.predictors import VersionOut, get_predictors
from app.config import CHECKOUT
from app.dashboard.charts.answers import accuracy_chart
from app.dashboard.routes.shell import as_picture, page, wants_svg
from app.wire.names import did_you_mean

_RECORD = CHECKOUT / "evaluation" / "records" / "scorecard.json"


@cache
def whole_workloads() -> list[dict[str, Any]]:
    """Return the recorded cells, worst first; none where this installation has no record."""
    if not _RECORD.is_file():
        return []
    cells: list[dict[str, Any]] = json.loads(_RECORD.read_text("utf-8"))["cells"]
    return cells


router = APIRouter(include_in_schema=False)

EVERY = "all"
SHOWN_WHOLE = 20  # whole workloads in sight at first; the others are a tap away
SPLITS = {
    "gpu_held_out": "on unseen GPUs",
    "few_measured": "on new GPUs after a few measurements",
    "configuration_held_out": "on unseen sizes of known GPUs",
}


@router.get("/accuracy")
def show(
    request: Request,
    database: DatabaseDep,
    holder: HolderDep,
    settings: SettingsDep,
    predictor: Annotated[str, Query(max_length=100)] = "auto",
    gpu: Annotated[str, Query(max_length=200)] = EVERY,
    split: Annotated[str, Query(max_length=100)] = "",
) -> Response:
    """The accuracy card of one predictor, for all GPUs or one, and the versions in use."""
    items = get_predictors(database, holder, settings).items
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
        whole=whole_workloads(),
        shown_whole=SHOWN_WHOLE,
    )


def _card(versions: list[VersionOut], gpu: str) -> VersionOut | None:
    """Return the version that answers for the GPU: its own, the pooled one, or the shipped one."""
    own = [version for version in versions if version.gpu == gpu]
    pooled = [version for version in versions if version.gpu is None]
    return next(iter((*own, *pooled)), None)
