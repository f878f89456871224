"""Whole models on GPUs that were left out: what `auto` answers, and how much its intervals hold.

Each GPU in turn: operators are learned from the others, at most MOST_LEARNED rows each, and intervals are made of
residuals of operators on these, each of them left out likewise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from app.evaluation.models import Ready, Study, answered_models
from app.predictors.auto.predictor import Auto
from app.tables.operator_runs import OperatorRuns
from app.training.operator_folds import NEUSIGHT_TRAINING, TRAIN
from app.training.operator_validation import GPU_HELD_OUT, MOST_TESTED, HeldOut, answers
from app.training.row_limits import MOST_LEARNED

PART = "left_out"


def left_out(study: Study, progress: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """A cell per measured run of NeuSight's training GPUs, from the dimensions that it trained on."""
    rows = [cell.runs.take(np.flatnonzero(cell.split == TRAIN)) for cell in study.operators]
    yield from answers_left_out(study, rows, NEUSIGHT_TRAINING, progress)


def answers_left_out(
    study: Study,
    rows: Sequence[OperatorRuns],
    names: Sequence[str],
    progress: Callable[[str], None],
    *,
    most: int = MOST_LEARNED,
) -> Iterator[dict[str, Any]]:
    """A cell per measured run of the GPUs `names`; `most` rows of each operator and other GPU teach."""
    rows = [run for run in rows if len(run)]
    fitted: dict[str, Auto] = {}
    residuals: dict[str, list[HeldOut]] = {}
    for name in names:
        progress(f"auto learns operators, {name} left out")
        gpu = study.gpus.ids.index(name)
        here = [run for run in rows if (run.rows.gpu == gpu).any()]
        taught = [_thinned(run.take(np.flatnonzero(run.rows.gpu != gpu)), most) for run in here or rows]
        same = None if here else next((one for one in fitted if not residuals[one]), None)
        fitted[name] = Auto().fit_operators(taught, study.gpus) if same is None else fitted[same]
        asked = [_thinned(run.take(np.flatnonzero(run.rows.gpu == gpu)), MOST_TESTED) for run in here]
        residuals[name] = [
            answers(fitted[name], asked, study.gpus, k, np.arange(len(run)), GPU_HELD_OUT)
            for k, run in enumerate(asked)
        ]
    for name in names:
        others = _together([part for gpu, parts in residuals.items() if gpu != name for part in parts])
        ready = Ready(fitted[name], others.intervals())
        runs = [run for run in study.runs if run.gpu == name and not run.option]
        for cell in answered_models(ready, runs, study):
            yield {"predictor": "auto", **cell, "part": PART}


def _thinned(run: OperatorRuns, most: int) -> OperatorRuns:
    """At most `most` rows of each GPU, at random but always the same."""
    kept = [
        np.random.default_rng(0).permutation(np.flatnonzero(run.rows.gpu == gpu))[:most]
        for gpu in np.unique(run.rows.gpu)
    ]
    return run.take(np.sort(np.concatenate(kept)))


def _together(parts: list[HeldOut]) -> HeldOut:
    names = [field.name for field in fields(HeldOut)][1:]
    return HeldOut(parts[0].cells, *(np.concatenate([getattr(part, name) for part in parts]) for name in names))
