"""How far each predictor of deep-learning operators is from measured rows that it did not learn from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from app import __version__
from app.engine.curated import load_seed_specs
from app.errors import BadInput, NotTrained
from app.evaluation.operator_cells import read_cells
from app.evaluation.operator_goals import APART, GOALS, MUST_REACH, Where, published
from app.evaluation.process_age import aged
from app.predictors import OPERATOR_PREDICTORS
from app.predictors.base import calibrated
from app.predictors.finish import finished
from app.predictors.intervals.conformal import Intervals
from app.predictors.roofline import hardware_limit
from app.tables.arrays import Ints
from app.tables.gpus import GpuTable
from app.tables.measurements import Evidence
from app.tables.operator_runs import OperatorRuns
from app.training.operator_folds import PROTOCOLS, Ask, Cell, Rows, operator_folds
from app.training.operator_scores import ALL, Answers, Errors, score_rows
from app.training.operator_training import trained
from app.training.row_limits import MOST_TEST_ROWS
from app.wire.kernel_workload import NO_MEASUREMENTS

Result = Mapping[str, Any]
Ready = tuple[Any, Intervals]

NO_EVIDENCE = Evidence(NO_MEASUREMENTS, np.empty(0, dtype=np.intp))
COVERAGE = 0.8
# Predictors that also get intervals from rows held out inside each fold, some ten fits more; the others have documented
# ones, and are compared by their errors.
WITH_INTERVALS = ("auto",)
# Parts of few_shot for which a predictor without a rule for measured rows is fitted anew with them: that takes time.
REFITTED = ("128_rows", "2_points")
# The part of a protocol that asks for times with the drift of the process that measured them.
AS_MEASURED = "as_measured"


class Contender(NamedTuple):
    """A predictor as it is judged: fitted to each fold's training rows or as it comes; `holds_out` is for intervals."""

    name: str
    predictor: type[Any]
    learns: bool
    holds_out: bool = False


@dataclass(frozen=True, slots=True)
class Study:
    """Scores of all contenders; `limits` says how many rows were asked and trained on, and `version` whose they are."""

    cells: tuple[Result, ...]
    limits: Mapping[str, int | None]
    version: str


def contenders() -> tuple[Contender, ...]:
    """Predictors that learn operators, and those that answer without."""
    found = []
    for predictor in OPERATOR_PREDICTORS:
        learns = predictor.can.learns_operators
        if learns:
            found.append(Contender(predictor.name, predictor, True, predictor.name in WITH_INTERVALS))
        if not predictor.can.needs_training:
            found.append(Contender(f"{predictor.name}-untrained" if learns else predictor.name, predictor, False))
    return tuple(found)


def family_of(cell: Cell) -> str:
    """The line of the breakdown; attention by operator, as prefill and decode have little in common."""
    return cell.runs.op if cell.group == "attention" else cell.group


def evaluate_operators(  # noqa: PLR0913  (a choice per option of the command)
    folder: Path,
    *,
    predictors: Sequence[str] = (),
    families: Sequence[str] = (),
    protocols: Sequence[str] = (),
    most_test: int = MOST_TEST_ROWS,
    most_train: int | None = None,
    intervals: bool = True,
    progress: Callable[[str], None] = lambda line: None,
) -> Study:
    """Scores by the protocols named (all where none is), on the data sets that `folder` holds.

    Without `intervals` every predictor has documented ones, which takes a tenth of the time.
    """
    known = {one.name: one if intervals else one._replace(holds_out=False) for one in contenders()}
    running = _chosen("predictor", known, predictors)
    asked = [protocol for protocol in PROTOCOLS if protocol in _chosen("protocol", dict.fromkeys(PROTOCOLS), protocols)]
    gpus = GpuTable.from_specs(load_seed_specs())
    progress(f"reading {folder}")
    cells = list(read_cells(folder))
    of_family: dict[str, list[Cell]] = defaultdict(list)
    for cell in cells:
        of_family[family_of(cell)].append(cell)
    wanted = [cell for part in _chosen("family", of_family, families).values() for cell in part]
    found: dict[tuple[str, str, str], list[Answers]] = defaultdict(list)
    for fold in operator_folds(wanted, gpus.ids, asked, most_test=most_test, most_train=most_train):
        for contender in running.values():
            started = perf_counter()
            for protocol, part, answers in _answers(contender, wanted, gpus, fold.train, fold.asks):
                found[protocol, part, contender.name] += answers
            progress(f"{fold.name}: {contender.name}, {perf_counter() - started:.1f} s")
    return Study(
        tuple(_results(found, gpus.ids)),
        {"test_rows": most_test, "rows": most_train, "intervals": intervals},
        __version__,
    )


def _chosen(what: str, known: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    if unknown := [name for name in names if name not in known]:
        raise BadInput(f"Unknown {what} {unknown[0]!r}: use one of {', '.join(known)}.")
    return {name: value for name, value in known.items() if not names or name in names}


def _answers(
    contender: Contender, cells: Sequence[Cell], gpus: GpuTable, train: Rows, asks: Sequence[Ask]
) -> Iterator[tuple[str, str, list[Answers]]]:
    """What a contender answers in a fold, by protocol and part; nothing where there is too little to learn from."""
    fitted = _fitted(contender, cells, train, gpus)
    for ask in asks:
        ready = _told(contender, fitted, cells, train, ask, gpus) if ask.given and contender.learns else fitted
        if ready is None:
            continue
        yield ask.protocol, ask.part, [_answer(ready, cells[k], rows, gpus) for k, rows in ask.test.items()]
        if not ask.given:
            drifting = {k: rows for k, rows in ask.test.items() if k in train and cells[k].drift_s.any()}
            yield (
                ask.protocol,
                AS_MEASURED,
                [_answer(ready, cells[k], rows, gpus, train[k]) for k, rows in drifting.items()],
            )


def _fitted(contender: Contender, cells: Sequence[Cell], train: Rows, gpus: GpuTable) -> Ready | None:
    if not contender.learns:
        return contender.predictor(), Intervals.prior()
    try:
        if not contender.holds_out:
            return contender.predictor().fit_operators(_taken(cells, train), gpus), Intervals.prior()
        fitted = trained(contender.predictor(), _taken(cells, train), gpus)
    except NotTrained:
        return None
    return fitted.predictor, fitted.intervals


def _told(
    contender: Contender, fitted: Ready | None, cells: Sequence[Cell], train: Rows, ask: Ask, gpus: GpuTable
) -> Ready | None:
    """A predictor that was told measured rows: by its hook if it has one, else fitted anew with them."""
    if fitted is not None and calibrated(fitted[0]):
        return fitted[0].with_measured(_taken(cells, ask.given), gpus), fitted[1]
    if ask.part not in REFITTED:
        return None
    return _fitted(contender, cells, {k: np.union1d(train[k], rows) for k, rows in ask.given.items()}, gpus)


def _taken(cells: Sequence[Cell], rows: Rows) -> list[OperatorRuns]:
    return [cells[k].runs.take(some) for k, some in rows.items()]


def _answer(ready: Ready, cell: Cell, rows: Ints, gpus: GpuTable, learned: Ints | None = None) -> Answers:
    """How answers for rows of a cell do; with the drift of the rows `learned`, against times as they were measured."""
    predictor, intervals = ready
    runs = cell.runs.rows.take(rows)
    i = np.arange(len(runs))
    estimate = predictor.predict(runs.ops, gpus, i, runs.gpu, evidence=NO_EVIDENCE)
    limit = hardware_limit(runs.ops, gpus, i, runs.gpu)
    predicted = finished(estimate, limit, intervals.log_offsets(COVERAGE))
    measured_s = runs.latency_s
    if learned is not None:
        predicted = aged(predicted, runs.gpu, cell.drift_s[learned], cell.runs.rows.gpu[learned])
        measured_s = measured_s + cell.drift_s[rows]
    return Answers(family_of(cell), cell.runs.op, cell.runs.dtype, Errors.of(predicted, measured_s, runs.gpu))


def _results(found: Mapping[tuple[str, str, str], list[Answers]], gpus: Sequence[str]) -> Iterator[Result]:
    """Scores; `whole` where a cell holds all of its family's operators, which goals and published figures are about."""
    theirs, asked = published(), {goal.where for goal in GOALS}
    for (protocol, part, predictor), answers in found.items():
        for cell in score_rows(answers, gpus, APART):
            where = Where(protocol, part, cell["family"], cell["dtype"], cell["gpu"])
            if cell["gpu"] not in (ALL, *gpus) and where not in asked:
                continue  # without a GPU that stands apart for another family
            whole = cell["op"] == ALL or {one.op for one in answers if one.family == cell["family"]} == {cell["op"]}
            is_published = whole and protocol == "neusight" and cell["gpu"] == ALL
            yield {
                "protocol": protocol,
                "part": part,
                "predictor": predictor,
                "whole": whole,
                **cell,
                "goal": MUST_REACH.get((predictor, where)) if whole else None,
                "published": theirs.get((predictor, part, cell["family"])) if is_published else None,
            }
