"""Errors of predicted step times of whole models against NeuSight's measurements, by the path that serves requests.

Predictors train on operators as NeuSight does (app.training.operator_folds, `neusight`): on its training GPUs and
training dimensions. No row of L4, A100 80GB or A100 SXM4 is in the training rows, nor any row of the models' own
dimensions on an NVIDIA GPU. On AMD's GPUs, where no operator has both kinds of dimensions, predictors train on all but
a fifth of the configurations. No whole model is trained on; docs/explanation/notebook.md lists what was chosen by
looking at some.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from app.bands.conformal import Intervals
from app.engine.curated import load_seed_specs
from app.engine.engine import POOLED, Engine, Served
from app.errors import BadInput
from app.graphs.importers import hf
from app.graphs.run import Run
from app.predictors.base import Predictor
from app.services.models.networks import Network, prepare
from app.services.models.steps import time_step
from app.tables.arrays import Floats
from app.tables.catalog import Catalog
from app.tables.gpus import GpuTable
from app.tables.workload import BACKWARD, FORWARD
from app.training.operator_folds import NO_SPLIT, Cell, operator_folds
from evaluation.neusight_models import AMD, METHODS, Measured, read_config, read_measured, read_published
from evaluation.operator_cells import read_cells
from evaluation.operators import COVERAGE, Contender, contenders

Result = Mapping[str, Any]
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Study:
    """NeuSight's folder, its measured operators and runs, its published errors, and the GPUs."""

    folder: Path
    catalog: Catalog
    gpus: GpuTable
    operators: tuple[Cell, ...]
    runs: tuple[Measured, ...]
    published: Mapping[tuple[str, Any], float]


class Fitted(NamedTuple):
    """A trained predictor and its intervals."""

    predictor: Predictor
    intervals: Intervals


def evaluate_models(
    study: Study,
    *,
    predictors: Sequence[str] = (),
    most_train: int | None = None,
    progress: Report = lambda line: None,
) -> list[Result]:
    """Return a result per measured run and predictor (empty `predictors`: `auto`).

    `most_train`: largest number of training rows per operator and GPU. Raises BadInput for an unknown predictor.
    """
    known = {contender.name: contender for contender in contenders()}
    if unknown := [name for name in predictors if name not in known]:
        raise BadInput(f"Unknown predictor {unknown[0]!r}: use one of {', '.join(known)}.")
    cells: list[Result] = []
    for contender in [known[name] for name in predictors or ("auto",)]:
        for fitted, runs in _fitted(contender, study, most_train, progress):
            cells += [{"predictor": contender.name, **cell} for cell in predicted_models(fitted, runs, study)]
    return cells


def read_study(folder: Path) -> Study:
    """Return NeuSight's operators and models from a folder of data sets."""
    specs = load_seed_specs()
    catalog, home = Catalog(specs), folder / "neusight"
    runs, published = tuple(read_measured(home, catalog)), read_published(home, catalog)
    operators = tuple(cell for cell in read_cells(folder, names=("neusight",)) if (cell.split != NO_SPLIT).any())
    return Study(home, catalog, GpuTable.from_specs(specs), operators, runs, published)


def _fitted(
    contender: Contender, study: Study, most_train: int | None, progress: Report
) -> Iterator[tuple[Fitted, list[Measured]]]:
    """Return the predictor trained on each fold, and the runs that it predicts."""
    if not contender.learns:
        yield Fitted(contender.predictor(), Intervals.prior()), list(study.runs)
        return
    nvidia, amd = operator_folds(study.operators, study.gpus.ids, ["neusight"], most_test=1, most_train=most_train)
    for fold, is_amd in ((nvidia, False), (amd, True)):
        progress(f"{contender.name} trains on operators, for {'AMD' if is_amd else 'NVIDIA'}")
        train = [study.operators[k].runs.take(rows) for k, rows in fold.train.items()]
        predictor = contender.predictor().fit_operators(train, study.gpus)
        yield Fitted(predictor, Intervals.prior()), [run for run in study.runs if (run.gpu in AMD) == is_amd]


def predicted_models(fitted: Fitted, runs: Sequence[Measured], study: Study) -> Iterator[dict[str, Any]]:
    """Return a result per measured run; a network is predicted on all its GPUs at once."""
    by_network: dict[tuple[str, Run], list[Measured]] = {}
    for measured in runs:
        by_network.setdefault((measured.model, measured.run), []).append(measured)
    served = {(fitted.predictor.name, POOLED): Served(fitted.predictor, fitted.intervals, "evaluated")}
    engine = Engine(study.catalog, study.gpus, served)
    for (model, run), here in by_network.items():
        config = read_config(study.folder, model)
        rows = prepare(Network(("neusight", model), partial(hf.lower, config)), run)
        targets = [study.gpus.ids.index(measured.gpu) for measured in here]
        step = time_step(
            engine,
            rows,
            run,
            study.gpus,
            targets,
            predictor=fitted.predictor.name,
            coverage=COVERAGE,
            launched=True,
        )
        for k, measured in enumerate(here):
            seconds = (step.low_s[k], step.done.step_s[k], step.high_s[k])
            yield _cell(measured, seconds, step.done.phases_s[[FORWARD, BACKWARD], k], study)


def _cell(measured: Measured, seconds: tuple[float, float, float], passes: Floats, study: Study) -> dict[str, Any]:
    """Return the result of a run: `seconds` low, predicted and high; `passes` forward and backward, seconds [2]."""
    low, middle, high = (float(end) for end in seconds)
    published = {
        method: study.published[method, measured.key] for method in METHODS if (method, measured.key) in study.published
    }
    return {
        "part": measured.part,
        "gpu": measured.gpu,
        "model": measured.model,
        "mode": measured.mode,
        "sequence": measured.sequence,
        "batch": measured.batch,
        "option": measured.option,
        "odd": measured.odd,
        "measured_ms": measured.step_s * 1e3,
        "predicted_ms": middle * 1e3,
        "error": 100.0 * (middle / measured.step_s - 1.0),
        "low_ms": low * 1e3,
        "high_ms": high * 1e3,
        "held": low <= measured.step_s <= high,
        "forward_ms": float(passes[0]) * 1e3,
        "backward_ms": float(passes[1]) * 1e3,
        "measured_forward_ms": measured.forward_s * 1e3,
        "measured_backward_ms": measured.backward_s * 1e3,
        "published": published,
    }
