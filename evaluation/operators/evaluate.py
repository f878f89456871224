"""Errors of every predictor of deep-learning operators on measured rows outside its training rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from app import __version__
from app.bands.conformal import Intervals
from app.bands.coverage import COVERAGE
from app.engine.catalogue import load_seed_specs
from app.engine.engine import finished
from app.errors import NotTrained
from app.ops import OPS
from app.predictors import OPERATOR_PREDICTORS
from app.predictors.base import calibrated
from app.predictors.fitted_once import fitted_once
from app.predictors.roofline import hardware_limit
from app.tables.arrays import Bools, Floats, Ints
from app.tables.gpus import GpuTable
from app.tables.measurements import Evidence, OperatorRuns
from app.training.operator_start import Start
from app.training.operator_validation import held_out
from app.training.row_limits import MOST_TEST_ROWS
from app.wire.kernel_tables import NO_MEASUREMENTS
from evaluation.data import Cell, read_cells
from evaluation.operators.folds import PROTOCOLS, EvaluationSet, OperatorFold, Rows, operator_folds
from evaluation.operators.goals import APART, GOALS, MUST_REACH, Where, published
from evaluation.operators.scores import ALL, CellErrors, RowErrors, score_rows, with_host_drift
from evaluation.render import commit
from evaluation.study import Progress, Result, chosen

NO_EVIDENCE = Evidence(NO_MEASUREMENTS, np.empty(0, dtype=np.intp))
# Predictors whose intervals come from rows held out inside each fold, about ten more fits; the others have the
# documented intervals and are compared by their errors.
WITH_INTERVALS = ("auto",)
# Parts of few_shot in which a predictor without few-shot calibration is fitted again with the measured rows; not in all
# parts, as it takes long.
REFITTED = ("128_rows", "2_points")
# The part of a protocol whose measured times include host drift.
AS_MEASURED = "as_measured"


class Contender(NamedTuple):
    """A predictor to evaluate.

    learns     whether it is fitted to each fold's training rows
    holds_out  whether its intervals come from rows held out inside each fold
    """

    name: str
    predictor: type[Any]
    learns: bool
    holds_out: bool = False


class Fitted(NamedTuple):
    """A predictor after training, and its intervals."""

    predictor: Any
    intervals: Intervals


def contenders() -> tuple[Contender, ...]:
    """Return the predictors that train on operators, and those that need no training (with both, once each)."""
    all_contenders = []
    for predictor in OPERATOR_PREDICTORS:
        learns = predictor.can.learns_operators
        if learns:
            all_contenders.append(Contender(predictor.name, predictor, True, predictor.name in WITH_INTERVALS))
        if not predictor.can.needs_training:
            all_contenders.append(
                Contender(f"{predictor.name}-untrained" if learns else predictor.name, predictor, False)
            )
    return tuple(all_contenders)


def family_of(cell: Cell) -> str:
    """Return the family of a cell."""
    return cell.op.family


def operators_of(families: Collection[str]) -> set[str]:
    """Return the names of the operators in these families."""
    return {op.name for op in OPS if op.family in families}


def evaluate_operators(  # noqa: PLR0913  (an argument per option of the command)
    folder: Path,
    *,
    predictors: Sequence[str] = (),
    families: Sequence[str] = (),
    protocols: Sequence[str] = (),
    most_test: int = MOST_TEST_ROWS,
    most_train: int | None = None,
    intervals: bool = True,
    progress: Progress = lambda line: None,
) -> list[Result]:
    """Return the scores of `predictors` on the data sets in `folder`; empty choices mean all.

    `most_test`, `most_train`: largest numbers of rows per operator, dtype and GPU. Without `intervals` every predictor
    has the documented ones, which takes a tenth of the time. A result has the version, the commit and the limits that
    made it. Raises BadInput for an unknown name.
    """
    known = {each.name: each if intervals else each._replace(holds_out=False) for each in contenders()}
    running = chosen("predictor", known, predictors)
    selected = list(chosen("protocol", dict.fromkeys(PROTOCOLS), protocols))
    gpus = GpuTable.from_specs(load_seed_specs())
    progress(f"reading {folder}")
    in_families = chosen("family", dict.fromkeys(op.family for op in OPS), families)
    cells = sorted(read_cells(folder, operators_of(in_families)), key=family_of)
    cells = [cell for cell in cells if family_of(cell) in in_families]
    errors: dict[tuple[str, str, str], list[CellErrors]] = defaultdict(list)
    with fitted_once():
        for fold in operator_folds(cells, gpus.ids, selected, most_test=most_test, most_train=most_train):
            for contender in running.values():
                started = perf_counter()
                for protocol, part, in_part in errors_by_part(contender, cells, gpus, fold):
                    errors[protocol, part, contender.name] += in_part
                progress(f"{fold.name}: {contender.name}, {perf_counter() - started:.1f} s")
    limits = {"test_rows": most_test, "rows": most_train, "intervals": intervals}
    made_by = {"version": __version__, "commit": commit(), "limits": limits}
    return [{**cell, **made_by} for cell in _results(errors, gpus.ids)]


def errors_by_part(
    contender: Contender, cells: Sequence[Cell], gpus: GpuTable, fold: OperatorFold
) -> Iterator[tuple[str, str, list[CellErrors]]]:
    """Return a contender's errors in a fold by protocol and part; none where there are too few training rows."""
    fitted = _fitted(contender, cells, fold.train, gpus)
    for tested in fold.evaluation_sets:
        calibrates = tested.given and contender.learns
        ready = _calibrated(contender, fitted, cells, (fold.train, tested), gpus) if calibrates else fitted
        if ready is None:
            continue
        test = tested.test
        yield tested.protocol, tested.part, [_cell_errors(ready, cells[k], test[k], gpus) for k in test]
        if not tested.given:
            drifting = [k for k in test if k in fold.train and cells[k].drift_s.any()]
            errors = [_cell_errors(ready, cells[k], test[k], gpus, fold.train[k]) for k in drifting]
            yield tested.protocol, AS_MEASURED, errors


def _fitted(contender: Contender, cells: Sequence[Cell], train: Rows, gpus: GpuTable) -> Fitted | None:
    """Return a contender fitted to the rows `train`; None if they are too few."""
    if not contender.learns:
        return Fitted(contender.predictor(), Intervals.prior())
    runs = _runs(cells, train)
    try:
        predictor = contender.predictor().fit_operators(runs, gpus)
        if not contender.holds_out:
            return Fitted(predictor, Intervals.prior())
        validated = held_out(Start(contender.predictor), runs, gpus, lambda line: None)
    except NotTrained:
        return None
    return Fitted(predictor, validated.intervals())


def _calibrated(
    contender: Contender, fitted: Fitted | None, cells: Sequence[Cell], rows: tuple[Rows, EvaluationSet], gpus: GpuTable
) -> Fitted | None:
    """Return a contender that uses the measured rows `given`, by few-shot calibration if it can, else fitted again.

    `rows`: the training rows, and the test set with its given rows. None if it can do neither.
    """
    train, tested = rows
    if fitted is not None and calibrated(fitted.predictor):
        return fitted._replace(predictor=fitted.predictor.with_measured(_runs(cells, tested.given), gpus))
    if tested.part not in REFITTED:
        return None
    return _fitted(contender, cells, {k: np.union1d(train[k], given) for k, given in tested.given.items()}, gpus)


def _runs(cells: Sequence[Cell], rows: Rows) -> list[OperatorRuns]:
    """Return the given rows of each cell."""
    return [cells[k].runs.take(part) for k, part in rows.items()]


def served_s(predictor: Any | None, runs: OperatorRuns, gpus: GpuTable) -> tuple[Floats, Bools]:
    """Return the times of n rows as served, seconds [n], and where the predictor gives none, bool [n].

    They are not below the hardware limit, which stands in where the predictor gives none, or where there is none.
    """
    i, rows = np.arange(len(runs)), runs.rows
    limit_s = hardware_limit(rows.ops, gpus, i, rows.gpu).latency_s
    if predictor is None:
        return limit_s, np.ones(len(runs), dtype=np.bool_)
    latency_s = predictor.predict(rows.ops, gpus, i, rows.gpu, evidence=NO_EVIDENCE).latency_s
    return np.fmax(latency_s, limit_s), np.isnan(latency_s)


def _cell_errors(fitted: Fitted, cell: Cell, rows: Ints, gpus: GpuTable, train: Ints | None = None) -> CellErrors:
    """Return the errors on `rows` int [n] of a cell; with its training rows `train`, host drift is predicted too."""
    runs = cell.runs.rows.take(rows)
    i = np.arange(len(runs))
    estimate = fitted.predictor.predict(runs.ops, gpus, i, runs.gpu, evidence=NO_EVIDENCE)
    limit = hardware_limit(runs.ops, gpus, i, runs.gpu)
    predicted = finished(estimate, limit, fitted.intervals.log_offsets(COVERAGE), COVERAGE)
    measured_s = runs.latency_s
    if train is not None:
        predicted = with_host_drift(predicted, runs.gpu, cell.drift_s[train], cell.runs.rows.gpu[train])
        measured_s = measured_s + cell.drift_s[rows]
    return CellErrors(family_of(cell), cell.runs.op, cell.runs.dtype, RowErrors.of(predicted, measured_s, runs.gpu))


def _results(errors: Mapping[tuple[str, str, str], list[CellErrors]], gpus: Sequence[str]) -> Iterator[Result]:
    """Return the scores; `whole` marks those that pool all operators of a family, as goals and published errors do."""
    published_mape, goals = published(), {goal.where for goal in GOALS}
    for (protocol, part, predictor), in_part in errors.items():
        for cell in score_rows(in_part, gpus, APART):
            where = Where(protocol, part, cell["family"], cell["dtype"], cell["gpu"])
            if cell["gpu"] not in (ALL, *gpus) and where not in goals:
                continue  # scores without a GPU of APART are shown only where a goal names them
            ops = {each.op for each in in_part if each.family == cell["family"]}
            whole = cell["op"] == ALL or ops == {cell["op"]}
            is_published = whole and protocol == "neusight" and cell["gpu"] == ALL
            yield {
                "protocol": protocol,
                "part": part,
                "predictor": predictor,
                "whole": whole,
                **cell,
                "goal": MUST_REACH.get((predictor, where)) if whole else None,
                "published": published_mape.get((predictor, part, cell["family"])) if is_published else None,
            }
