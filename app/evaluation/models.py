"""How far whole models are from NeuSight's measured ones, by the same path that answers requests.

Operators are learned as NeuSight did (app.training.operator_folds, `neusight`): its training GPUs and its training
dimensions; L4, A100 80GB and A100 SXM4 were never seen, and no measured row of the models' own dimensions is known on
any NVIDIA GPU. Of AMD's GPUs, where no operator has both kinds of dimensions, all but a fifth of the configurations
are learned from. No whole model teaches anything: docs/explanation/notebook.md says what was chosen by looking at some.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from app.engine.curated import load_seed_specs
from app.engine.engine import POOLED, Engine, Served
from app.errors import BadInput
from app.evaluation.neusight_models import AMD, METHODS, Measured, read_config, read_measured, read_published
from app.evaluation.operator_cells import read_cells
from app.evaluation.operators import COVERAGE, Contender, contenders
from app.graphs.importers import hf
from app.graphs.run import Run
from app.predictors.base import Predictor
from app.predictors.intervals.conformal import Intervals
from app.services.models.networks import Network, prepare
from app.services.models.steps import time_step
from app.tables.arrays import Floats
from app.tables.catalog import Catalog
from app.tables.gpus import GpuTable
from app.tables.workload import BACKWARD, FORWARD
from app.training.operator_folds import NO_SPLIT, Cell, operator_folds

Result = Mapping[str, Any]
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Study:
    """What is asked and of what: NeuSight's folder, the GPUs, its operators, the measured runs."""

    folder: Path
    catalog: Catalog
    gpus: GpuTable
    operators: tuple[Cell, ...]
    runs: tuple[Measured, ...]
    published: Mapping[tuple[str, Any], float]


class Ready(NamedTuple):
    """A predictor that has learned what it may, and its intervals."""

    predictor: Predictor
    intervals: Intervals


def evaluate_models(
    study: Study,
    *,
    predictors: Sequence[str] = (),
    most_train: int | None = None,
    progress: Report = lambda line: None,
) -> list[Result]:
    """A cell per measured run and predictor (`auto` where none is named).

    `most_train` bounds the rows of each operator and GPU that are learned from.
    """
    known = {one.name: one for one in contenders()}
    if unknown := [name for name in predictors if name not in known]:
        raise BadInput(f"Unknown predictor {unknown[0]!r}: use one of {', '.join(known)}.")
    cells: list[Result] = []
    for contender in [known[name] for name in predictors or ("auto",)]:
        for ready, runs in _taught(contender, study, most_train, progress):
            cells += [{"predictor": contender.name, **cell} for cell in answered_models(ready, runs, study)]
    return cells


def read_study(folder: Path) -> Study:
    """NeuSight's operators and models of a folder of data sets."""
    specs = load_seed_specs()
    catalog, home = Catalog(specs), folder / "neusight"
    runs, published = tuple(read_measured(home, catalog)), read_published(home, catalog)
    operators = tuple(cell for cell in read_cells(folder) if (cell.split != NO_SPLIT).any())
    return Study(home, catalog, GpuTable.from_specs(specs), operators, runs, published)


def _taught(
    contender: Contender, study: Study, most_train: int | None, progress: Report
) -> Iterator[tuple[Ready, list[Measured]]]:
    """What learned each fold, and the runs that it is asked."""
    if not contender.learns:
        yield Ready(contender.predictor(), Intervals.prior()), list(study.runs)
        return
    nvidia, amd = operator_folds(study.operators, study.gpus.ids, ["neusight"], most_test=1, most_train=most_train)
    for fold, is_amd in ((nvidia, False), (amd, True)):
        progress(f"{contender.name} learns operators, for {'AMD' if is_amd else 'NVIDIA'}")
        rows = [study.operators[k].runs.take(some) for k, some in fold.train.items()]
        fitted = contender.predictor().fit_operators(rows, study.gpus)
        yield Ready(fitted, Intervals.prior()), [run for run in study.runs if (run.gpu in AMD) == is_amd]


def answered_models(ready: Ready, runs: Sequence[Measured], study: Study) -> Iterator[dict[str, Any]]:
    """A cell per measured run: each network over all its GPUs at once."""
    alike: dict[tuple[str, Run], list[Measured]] = {}
    for one in runs:
        alike.setdefault((one.model, one.run), []).append(one)
    served = {(ready.predictor.name, POOLED): Served(ready.predictor, ready.intervals, "evaluated")}
    engine = Engine(study.catalog, study.gpus, served)
    for (model, run), here in alike.items():
        config = read_config(study.folder, model)
        rows = prepare(Network(("neusight", model), partial(hf.lower, config)), run)
        targets = [study.gpus.ids.index(one.gpu) for one in here]
        step = time_step(
            engine,
            rows,
            run,
            study.gpus,
            targets,
            predictor=ready.predictor.name,
            coverage=COVERAGE,
            launched=True,
        )
        for k, one in enumerate(here):
            seconds = (step.low_s[k], step.done.step_s[k], step.high_s[k])
            yield _cell(one, seconds, step.done.phases_s[[FORWARD, BACKWARD], k], study)


def _cell(one: Measured, seconds: tuple[float, float, float], passes: Floats, study: Study) -> dict[str, Any]:
    low, middle, high = (float(end) for end in seconds)
    theirs = {method: study.published[method, one.key] for method in METHODS if (method, one.key) in study.published}
    return {
        "part": one.part,
        "gpu": one.gpu,
        "model": one.model,
        "mode": one.mode,
        "sequence": one.sequence,
        "batch": one.batch,
        "option": one.option,
        "odd": one.odd,
        "measured_ms": one.step_s * 1e3,
        "predicted_ms": middle * 1e3,
        "error": 100.0 * (middle / one.step_s - 1.0),
        "low_ms": low * 1e3,
        "high_ms": high * 1e3,
        "held": low <= one.step_s <= high,
        "forward_ms": float(passes[0]) * 1e3,
        "backward_ms": float(passes[1]) * 1e3,
        "measured_forward_ms": one.forward_s * 1e3,
        "measured_backward_ms": one.backward_s * 1e3,
        "published": theirs,
    }
