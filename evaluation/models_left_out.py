"""Errors and interval coverage of `auto` for whole models on GPUs that are left out in turn.

`auto` trains on the operators of the other GPUs, at most MOST_LEARNED rows of each. Its intervals are the conformal
ones of operator residuals on those GPUs, each of them left out in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from app.predictors.auto.predictor import Auto
from app.predictors.fitted_once import fitted_once
from app.tables.operator_runs import OperatorRuns
from app.training.operator_folds import NEUSIGHT_TRAINING, TRAIN
from app.training.operator_validation import GPU_HELD_OUT, MOST_TESTED, HeldOut, answers
from app.training.row_limits import MOST_LEARNED
from evaluation.models import Fitted, Study, predicted_models

PART = "left_out"


def left_out(study: Study, progress: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Return a result per measured run of NeuSight's training GPUs, trained on its training dimensions."""
    rows = [cell.runs.take(np.flatnonzero(cell.split == TRAIN)) for cell in study.operators]
    yield from predictions_left_out(study, rows, NEUSIGHT_TRAINING, progress)


def predictions_left_out(
    study: Study,
    rows: Sequence[OperatorRuns],
    names: Sequence[str],
    progress: Callable[[str], None],
    *,
    most: int = MOST_LEARNED,
) -> Iterator[dict[str, Any]]:
    """Return a result per measured run of the GPUs `names`, each left out in turn.

    `rows`: measured operators of all GPUs; `most`: largest number of training rows per operator and GPU.
    """
    rows = [run for run in rows if len(run)]
    fitted: dict[str, Auto] = {}
    residuals: dict[str, list[HeldOut]] = {}
    with fitted_once():
        for name in names:
            progress(f"auto trains on operators, {name} left out")
            gpu = study.gpus.ids.index(name)
            here = [run for run in rows if (run.rows.gpu == gpu).any()]
            train = [_thinned(run.take(np.flatnonzero(run.rows.gpu != gpu)), most) for run in here or rows]
            # GPUs without measured operators all train on the same rows: fit once.
            same = None if here else next((other for other in fitted if not residuals[other]), None)
            fitted[name] = Auto().fit_operators(train, study.gpus) if same is None else fitted[same]
            test = [_thinned(run.take(np.flatnonzero(run.rows.gpu == gpu)), MOST_TESTED) for run in here]
            residuals[name] = [
                answers(fitted[name], test, study.gpus, k, np.arange(len(run)), GPU_HELD_OUT)
                for k, run in enumerate(test)
            ]
    for name in names:
        others = _together([part for gpu, parts in residuals.items() if gpu != name for part in parts])
        calibrated = Fitted(fitted[name], others.intervals())
        runs = [run for run in study.runs if run.gpu == name and not run.option]
        for cell in predicted_models(calibrated, runs, study):
            yield {"predictor": "auto", **cell, "part": PART}


def _thinned(run: OperatorRuns, most: int) -> OperatorRuns:
    """Return at most `most` rows of each GPU, drawn with a fixed seed."""
    kept = [
        np.random.default_rng(0).permutation(np.flatnonzero(run.rows.gpu == gpu))[:most]
        for gpu in np.unique(run.rows.gpu)
    ]
    return run.take(np.sort(np.concatenate(kept)))


def _together(parts: list[HeldOut]) -> HeldOut:
    """Return the concatenation of residuals."""
    names = [field.name for field in fields(HeldOut)][1:]
    return HeldOut(parts[0].cells, *(np.concatenate([getattr(part, name) for part in parts]) for name in names))
