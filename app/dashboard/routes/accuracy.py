"""GET /accuracy: how far answers are off, by question, and what the predictors' cards and the scorecard say."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from app.api.deps import DatabaseDep, HolderDep, SettingsDep
from app.api.predictors import VersionOut, list_predictors
from app.bands.error_model import reliability, sources
from app.config import CHECKOUT
from app.dashboard.charts.answers import accuracy_chart
from app.dashboard.routes.shell import as_picture, page, wants_svg
from app.wire.names import did_you_mean

router = APIRouter(include_in_schema=False)

_RECORD = CHECKOUT / "evaluation" / "records" / "scorecard.json"


def scorecard(kept: Path) -> Mapping[str, Any]:
    """Return the recorded cells, worst first, and all runs: those that this installation keeps, else as shipped."""
    own = kept.is_file()
    record = kept if own else _RECORD
    empty: dict[str, Any] = {"cells": [], "history": [], "own": own}
    return empty | (json.loads(record.read_text("utf-8")) if record.is_file() else {})


class Question(NamedTuple):
    """A question that people ask: its measured figures, and percent: median errors, and shares inside of 80 %."""

    name: str
    rows: int
    unknown: float
    unknown_held: float
    known: float
    known_held: float


# Figures of whole answers by question.
QUESTIONS = {
    "Serve a model: time per output token": ("tpot", "step"),
    "Serve a model: time to first token": ("ttft",),
    "Train a model: time of a step": ("training",),
    "Train a model: memory": ("memory",),
    "Run a network once": ("network",),
    "Make images or videos": ("diffusion",),
    "Power of a GPU": ("power",),
}
# The two sides of whole answers, and of operators by split of the accuracy card.
_FIRST, _NOW = ("error at first, %", "held, %"), ("error now, %", "held known, %")
_OPERATORS = {
    "Run a kernel or an operator": ("gpu_held_out", "configuration_held_out"),
    "A GPU of mine, after a few measurements": ("gpu_held_out", "few_measured"),
}


def questions(card: VersionOut | None) -> list[Question]:
    """Return the accuracy by question; of operators by the card of a predictor, over all GPUs."""
    answered = [_question(name, [row for row in sources() if row["figure"] in who]) for name, who in QUESTIONS.items()]
    validation = [] if card is None else [row for row in card.validation if row.get("gpu", EVERY) == EVERY]
    for name, splits in _OPERATORS.items():
        parts = [[row for row in validation if row["split"] == split and row.get("n")] for split in splits]
        if all(parts):
            sides = [_typical(part, "mape", "coverage_80", "n") for part in parts]
            answered.append(Question(name, sum(row["n"] for row in parts[0]), *sides[0], *sides[1]))
    return answered


def _question(name: str, rows: Sequence[Mapping[str, Any]]) -> Question:
    unknown, known = (_typical(rows, *side, "rows") for side in (_FIRST, _NOW))
    return Question(name, sum(row["rows"] for row in rows), *unknown, *known)


def _typical(rows: Sequence[Mapping[str, Any]], error: str, held: str, count: str) -> tuple[float, float]:
    """Return the median error of rows and their mean share inside of intervals, weighted by their counts, percent."""
    ordered = sorted((row for row in rows if row.get(held) is not None), key=lambda row: float(row[error]))
    total = sum(row[count] for row in ordered)
    if not total:
        return float("nan"), float("nan")
    below = list(accumulate(row[count] for row in ordered))
    middle = next(row for row, so_far in zip(ordered, below, strict=True) if 2 * so_far >= total)
    return float(middle[error]), sum(row[held] * row[count] for row in ordered) / total


EVERY = "all"
SHOWN_WHOLE = 8  # whole workloads in sight at first; the others are a tap away
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
    whole = scorecard(settings.scorecard_file)
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
        questions=questions(card if predictor == "auto" else None),
        headline=_question("", sources()),
        reliability=[
            (name, row[0], inside)
            for k, name in enumerate(("As promised", "First contacts", "Known"))
            for row, inside in ((row, row[k]) for row in reliability())
        ],
        contacts=sources(),
        whole=whole["cells"],
        history=whole["history"],
        own_runs=whole["own"],
        picked=any(name in request.query_params for name in ("predictor", "gpu", "split")),
        shown_whole=SHOWN_WHOLE,
    )


def _card(versions: list[VersionOut], gpu: str) -> VersionOut | None:
    """Return the version that answers for the GPU: its own, the pooled one, or the shipped one."""
    own = [version for version in versions if version.gpu == gpu]
    pooled = [version for version in versions if version.gpu is None]
    return next(iter((*own, *pooled)), None)
