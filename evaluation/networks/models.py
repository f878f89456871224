"""Errors of predicted step times of whole models against NeuSight's measurements, by the path that serves requests.

Predictors train on operators as NeuSight does (evaluation.operators.folds, `neusight`): on its training GPUs and
training dimensions. No row of L4, A100 80GB or A100 SXM4 is in the training rows, nor any row of the models' own
dimensions on an NVIDIA GPU. On AMD's GPUs, where no operator has both kinds of dimensions, predictors train on all but
a fifth of the configurations. No whole model is trained on; docs/explanation/notebook.md lists what was chosen by
looking at some.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from app import __version__
from app.bands.conformal import Intervals
from app.bands.coverage import COVERAGE
from app.engine.engine import POOLED, Engine, Served
from app.networks.importers import hf
from app.predictors.auto.predictor import Auto
from app.predictors.fitted_once import fitted_once
from app.steps.networks import Network, prepare
from app.steps.timing import StepQuery, time_step
from app.tables.arrays import Floats
from app.tables.measurements import OperatorRuns
from app.tables.workload import BACKWARD, FORWARD
from app.training.operator_validation import GPU_HELD_OUT, MOST_TESTED, HeldOut, answers
from app.training.row_limits import MOST_LEARNED
from evaluation.data import TRAIN
from evaluation.networks.neusight import AMD, METHODS, Measured, NeuSightData, read_config
from evaluation.operators.evaluate import Contender, Fitted, contenders
from evaluation.operators.folds import NEUSIGHT_TRAINING, operator_folds
from evaluation.operators.report import COVERED, heading
from evaluation.render import NOTHING, Report, Table, bold, commit, markdown
from evaluation.study import Goal, Progress, Result, chosen, compared, grouped

MARKER = "models: neusight-models --results"
MARKED = (
    "In-sample: the column `held` (the widths of intervals of networks were set on these runs) and the column"
    " `auto-untrained`. Partly in-sample: `auto` on GPUs learned from, as the rule for cards of at most 75 W was set on"
    " the runs of T4 and P4."
)
_TABLES = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
# Titles by part, and the lines of the means: a label, fields of the results, and the largest error.
TITLES: Mapping[str, str] = _TABLES["titles"]
GOALS: tuple[Goal[Mapping[str, Any]], ...] = tuple(Goal(*line) for line in _TABLES["goals"])

_RUN = ("gpu", "model", "mode", "sequence", "batch", "option")
_RECORDED = ("predictor", "part", *_RUN, "odd", "error", "held", "published")


def evaluate_models(
    data: NeuSightData,
    *,
    predictors: Sequence[str] = (),
    most_train: int | None = None,
    progress: Progress = lambda line: None,
) -> list[Result]:
    """Return a result per measured run and predictor (empty `predictors`: `auto`).

    `most_train`: largest number of training rows per operator and GPU. Raises BadInput for an unknown predictor.
    """
    names = predictors or ("auto",)
    running = chosen("predictor", {contender.name: contender for contender in contenders()}, names)
    results: list[Result] = []
    for name in names:
        for fitted, runs in _fitted(running[name], data, most_train, progress):
            results += [{"predictor": name, **result} for result in predicted_models(fitted, runs, data)]
    return results


def _fitted(
    contender: Contender, data: NeuSightData, most_train: int | None, progress: Progress
) -> Iterator[tuple[Fitted, list[Measured]]]:
    """Return the predictor trained on each fold, and the runs that it predicts."""
    if not contender.learns:
        yield Fitted(contender.predictor(), Intervals.prior()), list(data.runs)
        return
    nvidia, amd = operator_folds(data.operators, data.gpus.ids, ["neusight"], most_test=1, most_train=most_train)
    for fold, is_amd in ((nvidia, False), (amd, True)):
        progress(f"{contender.name} trains on operators, for {'AMD' if is_amd else 'NVIDIA'}")
        train = [data.operators[k].runs.take(rows) for k, rows in fold.train.items()]
        predictor = contender.predictor().fit_operators(train, data.gpus)
        yield Fitted(predictor, Intervals.prior()), [run for run in data.runs if (run.gpu in AMD) == is_amd]


def predicted_models(fitted: Fitted, runs: Sequence[Measured], data: NeuSightData) -> Iterator[dict[str, Any]]:
    """Return a result per measured run; a network is predicted on all its GPUs at once."""
    served = {(fitted.predictor.name, POOLED): Served(fitted.predictor, fitted.intervals, "evaluated")}
    engine = Engine(data.catalog, data.gpus, served)
    for (model, run), here in grouped(runs, lambda measured: (measured.model, measured.run)).items():
        config = read_config(data.folder, model)
        rows = prepare(Network(("neusight", model), partial(hf.lower, config)), run)
        targets = [data.gpus.ids.index(measured.gpu) for measured in here]
        query = StepQuery(engine, data.gpus, targets, fitted.predictor.name, COVERAGE)
        step = time_step(query, rows, run, launched=True)
        for k, measured in enumerate(here):
            low, high = step.ends(COVERAGE)
            seconds = (low[k], step.done.step_s[k], high[k])
            yield _cell(measured, seconds, step.done.phases_s[[FORWARD, BACKWARD], k], data)


def _cell(
    measured: Measured, seconds: tuple[float, float, float], passes: Floats, data: NeuSightData
) -> dict[str, Any]:
    """Return the result of a run: `seconds` low, predicted and high; `passes` forward and backward, seconds [2]."""
    low, predicted, high = (float(end) for end in seconds)
    published = {
        method: data.published[method, measured.key] for method in METHODS if (method, measured.key) in data.published
    }
    return {
        **{name: getattr(measured, name) for name in ("part", *_RUN, "odd")},
        "measured_ms": measured.step_s * 1e3,
        "predicted_ms": predicted * 1e3,
        "low_ms": low * 1e3,
        "high_ms": high * 1e3,
        **compared(measured.step_s, predicted, low, high),
        "forward_ms": float(passes[0]) * 1e3,
        "backward_ms": float(passes[1]) * 1e3,
        "measured_forward_ms": measured.forward_s * 1e3,
        "measured_backward_ms": measured.backward_s * 1e3,
        "published": published,
    }


def left_out(data: NeuSightData, progress: Progress) -> Iterator[Result]:
    """Return a result per measured run of NeuSight's training GPUs, trained on its training dimensions."""
    rows = [cell.runs.take(np.flatnonzero(cell.split == TRAIN)) for cell in data.operators]
    yield from predictions_left_out(data, rows, NEUSIGHT_TRAINING, progress)


def predictions_left_out(
    data: NeuSightData,
    rows: Sequence[OperatorRuns],
    names: Sequence[str],
    progress: Progress,
    *,
    most: int = MOST_LEARNED,
) -> Iterator[dict[str, Any]]:
    """Return a result of `auto` per measured run of the GPUs `names`, each left out in turn.

    `auto` trains on the operators of the other GPUs. Its intervals are the conformal ones of operator residuals on
    those GPUs, each of them left out in the same way.
    `rows`: measured operators of all GPUs; `most`: largest number of training rows per operator and GPU.
    """
    rows = [run for run in rows if len(run)]
    fitted: dict[str, Auto] = {}
    residuals: dict[str, list[HeldOut]] = {}
    with fitted_once():
        for name in names:
            progress(f"auto trains on operators, {name} left out")
            gpu = data.gpus.ids.index(name)
            here = [run for run in rows if (run.rows.gpu == gpu).any()]
            train = [_thinned(run.take(np.flatnonzero(run.rows.gpu != gpu)), most) for run in here or rows]
            # GPUs without measured operators all train on the same rows: fit once.
            same = None if here else next((other for other in fitted if not residuals[other]), None)
            fitted[name] = Auto().fit_operators(train, data.gpus) if same is None else fitted[same]
            test = [_thinned(run.take(np.flatnonzero(run.rows.gpu == gpu)), MOST_TESTED) for run in here]
            residuals[name] = [
                answers(fitted[name], test, data.gpus, k, np.arange(len(run)), GPU_HELD_OUT)
                for k, run in enumerate(test)
            ]
    for name in names:
        others = [part for gpu, parts in residuals.items() if gpu != name for part in parts]
        calibrated = Fitted(fitted[name], HeldOut.together(others[0].cells, others).intervals())
        runs = [run for run in data.runs if run.gpu == name and not run.option]
        for cell in predicted_models(calibrated, runs, data):
            yield {"predictor": "auto", **cell, "part": "left_out"}


def _thinned(run: OperatorRuns, most: int) -> OperatorRuns:
    """Return at most `most` rows of each GPU, drawn with a fixed seed."""
    kept = [
        np.random.default_rng(0).permutation(np.flatnonzero(run.rows.gpu == gpu))[:most]
        for gpu in np.unique(run.rows.gpu)
    ]
    return run.take(np.sort(np.concatenate(kept)))


def report(results: Sequence[Result]) -> Report:
    """Return a line per run, by part, then the means; --results records errors, not the times that others measured."""
    columns = {
        **dict.fromkeys(("predictor", "gpu", "model", "mode"), ""),
        **{"length": "d", "batch": "d", "option": "", "measured ms": ".1f", "ours ms": ".1f"},
        **{"low": ".1f", "high": ".1f", "error": "+.1f", **dict.fromkeys(METHODS, "g")},
    }
    parts = grouped(sorted(results, key=_order), lambda result: str(result["part"]))
    tables = [Table(title, columns, list(map(_line, parts[part]))) for part, title in TITLES.items() if part in parts]
    head = {"study": "neusight-models", "version": __version__, "commit": commit()}
    errors = [{**{name: cell[name] for name in _RECORDED}, "error": round(cell["error"], 2)} for cell in results]
    run = head | {"cells": errors}
    return Report(
        blocks=[f"gpucast {__version__}. Errors in percent; published ones beside ours.", *tables, "", *means(results)],
        body=head | {"cells": results},
        record=run,
        pages={MARKER: page_lines(run)},
    )


def _order(cell: Result) -> tuple[Any, ...]:
    """Return the sort key of a result."""
    return tuple(cell[name] for name in ("predictor", "gpu", "mode", "model", "sequence", "batch", "option"))


def _line(cell: Result) -> list[Any]:
    run = [cell[name] for name in ("predictor", *_RUN)]
    run[-1] += "odd" if cell["odd"] else ""
    figures = [cell[name] for name in ("measured_ms", "predicted_ms", "low_ms", "high_ms", "error")]
    return [*run, *figures, *(str(cell["published"].get(method, NOTHING)) for method in METHODS)]


def means(cells: Sequence[Result]) -> list[str]:
    """Return the table of mean absolute errors: each predictor's, and published ones where a run has them."""
    names = list(dict.fromkeys(cell["predictor"] for cell in cells))
    columns = [
        *("mean absolute error, %", "runs", "goal", *map(heading, names)),
        *(*(f"published {method}" for method in METHODS), "held, % (in-sample)"),
    ]
    rows = []
    for goal in GOALS:
        by_predictor = grouped(
            (cell for cell in cells if goal.where.items() <= cell.items()), lambda cell: str(cell["predictor"])
        )
        if not by_predictor:
            continue
        first = next(iter(by_predictor.values()))
        ours = [_mean([abs(cell["error"]) for cell in by_predictor.get(name, ())], goal.most) for name in names]
        published = [_mean([cell["published"][key] for cell in first if key in cell["published"]]) for key in METHODS]
        rows.append((goal.label, len(first), goal.most, *ours, *published, _coverage(first)))
    return markdown(Table("", dict.fromkeys(columns, "g"), rows))


def _coverage(cells: Sequence[Result]) -> str:
    """Return the share of runs inside their interval, percent; bold if GPUs are left out and it is within COVERED."""
    share = 100.0 * float(np.mean([cell["held"] for cell in cells]))
    reached = cells[0]["part"] == "left_out" and COVERED[0] <= share <= COVERED[1]
    return bold(f"{share:.0f}", reached)


def _mean(errors: Sequence[float], most: float | None = None) -> str:
    """Return the mean; bold if it is at most `most`."""
    if not errors:
        return "-"
    text = f"{np.mean(errors):.1f}"
    return bold(text, most is not None and float(text) <= most)


def by_gpu(cells: Sequence[Result]) -> Iterator[str]:
    """Return the paper's tables: errors of the first predictor / of NeuSight, by model and batch and by GPU."""
    names = list(dict.fromkeys(cell["predictor"] for cell in cells))
    first = [cell for cell in cells if cell["predictor"] == names[0] and cell["part"] in {"unseen", "seen", "amd"}]
    for mode, title in (("inf", "inference"), ("train", "training")):
        here = [cell for cell in first if cell["mode"] == mode]
        gpus = sorted({cell["gpu"] for cell in here})
        rows = []
        for run, alike in grouped(sorted(here, key=_run), _run).items():
            on = {cell["gpu"]: cell for cell in alike}
            rows.append((" ".join(run), *(_pair(on.get(gpu)) for gpu in gpus)))
        head = f"{title}: `{names[0]}` / published NeuSight, %"
        yield from ("", *markdown(Table("", dict.fromkeys((head, *gpus), ""), rows)))


def _run(cell: Result) -> tuple[str, str, str]:
    return cell["model"], f"{cell['sequence']:>4}", f"x {cell['batch']}"


def _pair(cell: Result | None) -> str:
    if cell is None:
        return ""
    return f"{abs(cell['error']):.1f}{' odd' if cell['odd'] else ''} / {cell['published'].get('neusight', '-')}"


def page_lines(run: Mapping[str, Any]) -> list[str]:
    """Return the lines between the markers of the results page, from a record."""
    cells = run["cells"]
    return [*means(cells), *by_gpu(cells), "", MARKED, "", f"Version {run['version']}, commit {run['commit']}."]
