"""Few-shot calibration of a left-out GPU: error and coverage with no rows, with planned rows and with random rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from app import __version__
from app.bands.coverage import COVERAGE
from app.engine.catalogue import load_seed_specs
from app.errors import BadInput
from app.ops import OP_CODE
from app.predictors.active_selection import Prospect, chosen
from app.predictors.auto.operators.learning.learn import expected_errors
from app.predictors.auto.operators.models.gaussian_process import expected_noise
from app.predictors.auto.predictor import Auto
from app.predictors.fitted_once import fitted_once
from app.tables.arrays import Ints
from app.tables.gpus import GpuTable
from app.tables.measurements import OperatorRuns
from app.training.fit import covered
from app.training.operator_validation import HeldOut, answers
from app.training.row_hashes import dimensions
from app.training.row_limits import MOST_TRAIN
from evaluation.data import Cell, read_cells
from evaluation.operators.evaluate import family_of, operators_of
from evaluation.operators.folds import first_rows
from evaluation.render import Block, Report, Table, bold, commit, markdown
from evaluation.study import Progress, Result

GivenRows = Mapping[int, Ints]

SHAPES, DRAWS = 32, 3
NONE, PLAN, RANDOM = "none", "plan", "random"
# Rows per operator and dtype that are candidates, that represent the workload, and that are tested.
CANDIDATES, WORKLOAD, TESTED = 400, 200, 600
# Least number of rows given; of fewer rows, a quarter are given.
_LEAST = 4


class Trial(NamedTuple):
    """Answers for rows of one family and dtype on the held-out GPU, and the selection of the given rows."""

    selection: str
    draw: int
    family: str
    dtype: str
    held_out: HeldOut


def trials(
    fitted: Any, runs: Sequence[OperatorRuns], gpus: GpuTable, target: int, family_of: Callable[[OperatorRuns], str]
) -> Iterator[Trial]:
    """Yield the trials of every family and dtype of `runs` measured on `target`, a GPU that `fitted` has not seen."""
    families: dict[tuple[str, str], list[int]] = {}
    for k, run in enumerate(runs):
        if (run.rows.gpu == target).any():
            families.setdefault((family_of(run), run.dtype), []).append(k)
    for (family, dtype), members in families.items():
        here = {k: np.flatnonzero(runs[k].rows.gpu == target) for k in members}
        count = min(SHAPES, sum(map(len, here.values())) // _LEAST)
        if count:
            selections = [(NONE, 0, dict[int, Ints]()), (PLAN, 0, _planned(fitted, runs, gpus, here, count))]
            selections += [(RANDOM, draw, _drawn(runs, here, count, draw)) for draw in range(DRAWS)]
            for selection, draw, given in selections:
                yield Trial(selection, draw, family, dtype, _answers_of(fitted, runs, gpus, here, given))


def _planned(fitted: Any, runs: Sequence[OperatorRuns], gpus: GpuTable, here: GivenRows, count: int) -> dict[int, Ints]:
    """Return the rows that the plan selects before any is measured."""
    rows, prospects = {}, []
    for k, mine in here.items():
        rows[k] = first_rows(mine, runs[k].key, CANDIDATES, salt=3)
        workload = np.arange(min(WORKLOAD, len(rows[k])))
        covariance = expected_errors(fitted.operators_, runs[k].rows.take(rows[k]), gpus)
        assert covariance is not None  # of a GPU that was not learned from
        share = np.full(len(workload), len(mine) / len(workload))
        noise = expected_noise(int(runs[k].rows.ops.kind[0]))
        prospects.append(Prospect(covariance, noise, workload, share, np.arange(len(rows[k]))))
    taken: dict[int, list[int]] = {}
    for which, row in chosen(prospects, count):
        k = list(here)[which]
        taken.setdefault(k, []).append(int(rows[k][row]))
    return {k: np.array(some) for k, some in taken.items()}


def _drawn(runs: Sequence[OperatorRuns], here: GivenRows, count: int, draw: int) -> dict[int, Ints]:
    """Return random rows of the family, deterministically."""
    cell = np.concatenate([np.full(len(rows), k) for k, rows in here.items()])
    row = np.concatenate(list(here.values()))
    key = np.concatenate([runs[k].key[rows] for k, rows in here.items()])
    picked = first_rows(np.arange(len(row)), key, count, salt=100 + draw)
    return {int(k): row[picked[cell[picked] == k]] for k in np.unique(cell[picked])}


def _answers_of(
    fitted: Any, runs: Sequence[OperatorRuns], gpus: GpuTable, here: GivenRows, given: GivenRows
) -> HeldOut:
    """Return the answers for rows whose dimensions were not given."""
    calibrated = fitted.with_measured([runs[k].take(rows) for k, rows in given.items()], gpus) if given else fitted
    parts = []
    for k, rows in here.items():
        shape = dimensions(runs[k])
        rest = rows[~np.isin(shape[rows], shape[given[k]])] if k in given else rows
        parts.append(answers(calibrated, runs, gpus, k, first_rows(rest, runs[k].key, TESTED, salt=2), 0))
    return HeldOut.together(parts[0].cells, parts)


ALL, NOT_CHOSEN_ON = "all", "not chosen on"
ROW = "| `gpucast evaluate calibration --data DIR` |"
MARKER = "calibration: calibration --results"
# Goal: largest share of the error without measurements that is left after the planned rows.
MOST_LEFT = 2.0 / 3.0
# GPUs on which the constants of models.gaussian_process were set; NOT_CHOSEN_ON are the others.
VALIDATION = (
    "a100-pcie-40gb",
    "a100-sxm4-80gb",
    "amd-instinct-mi100",
    "b200",
    "l40s",
    "nvidia-l4",
    "tesla-p4",
    "tesla-v100-pcie-32gb",
)


def evaluate_calibration(
    folder: Path,
    *,
    families: Sequence[str] = (),
    gpus: Sequence[str] = (),
    most_train: int = MOST_TRAIN,
    progress: Progress = lambda line: None,
) -> list[Result]:
    """Return errors by family, dtype and set of GPUs on the data sets in `folder`.

    Each GPU of `gpus` (empty: all) is left out in turn.

    `families`: those to evaluate (empty: all); `most_train`: largest number of training rows per operator, dtype and
    GPU. Raises BadInput for an unknown family or a GPU without measurements.
    """
    table = GpuTable.from_specs(load_seed_specs())
    selected = _cells_of(folder, families)
    measured = sorted({int(gpu) for cell in selected for gpu in np.unique(cell.runs.rows.gpu)})
    if unmeasured := [name for name in gpus if name not in {table.ids[gpu] for gpu in measured}]:
        names = ", ".join(table.ids[gpu] for gpu in measured)
        raise BadInput(f"Nothing was measured on {unmeasured[0]!r}: use one of {names}.")
    all_trials: list[Trial] = []
    with fitted_once():
        for target in measured:
            if not gpus or table.ids[target] in gpus:
                progress(f"{table.ids[target]} held out")
                all_trials += _trials_on(selected, table, target, most_train)
    return list(_results(all_trials, table))


def _cells_of(folder: Path, families: Sequence[str]) -> list[Cell]:
    """Return the cells of `families` (empty: all), reading no others. Raises BadInput for one that was not measured."""
    if not families:
        return read_cells(folder)
    cells = read_cells(folder, operators_of(families) or OP_CODE)
    measured = {family_of(cell) for cell in cells}
    if unknown := [name for name in families if name not in measured]:
        known = dict.fromkeys(map(family_of, read_cells(folder)))
        raise BadInput(f"Unknown family {unknown[0]!r}: use one of {', '.join(known)}.")
    return [cell for cell in cells if family_of(cell) in families]


def _trials_on(cells: Sequence[Cell], gpus: GpuTable, target: int, most: int) -> Iterator[Trial]:
    """Return the trials on GPU `target`, of operators that other GPUs measured too; at most `most` rows train each."""
    runs, train, group = [], [], {}
    for cell in cells:
        run = cell.runs
        other = np.unique(run.rows.gpu[run.rows.gpu != target])
        if len(other) and len(other) < len(np.unique(run.rows.gpu)):
            rows = [first_rows(np.flatnonzero(run.rows.gpu == gpu), run.key, most, salt=2) for gpu in other]
            runs.append(run)
            train.append(run.take(np.sort(np.concatenate(rows))))
            group[run.op] = family_of(cell)
    if runs:
        fitted = Auto().fit_operators(train, gpus)
        yield from trials(fitted, runs, gpus, target, lambda run: group[run.op])


def _results(all_trials: Sequence[Trial], gpus: GpuTable) -> Iterator[Result]:
    """Return a result per family, dtype and set of GPUs: each GPU, those outside VALIDATION, and all."""
    for family, dtype in dict.fromkeys((trial.family, trial.dtype) for trial in all_trials):
        mine = [trial for trial in all_trials if (trial.family, trial.dtype) == (family, dtype)]
        ids = sorted({gpus.ids[int(trial.held_out.gpu[0])] for trial in mine})
        others = [gpu for gpu in ids if gpu not in VALIDATION]
        inside = {how: _inside(mine, how) for how in (NONE, PLAN, RANDOM)}
        for name, among in [(gpu, [gpu]) for gpu in ids] + [(NOT_CHOSEN_ON, others), (ALL, ids)]:
            if among:
                figures = {
                    how: _figures(mine, how, inside[how], [gpus.ids.index(gpu) for gpu in among]) for how in inside
                }
                yield {"family": family, "dtype": dtype, "gpu": name, **figures}


def _inside(mine: Sequence[Trial], how: str) -> dict[int, Any]:
    """Return by draw whether each prediction lies in its interval, which residuals of the other GPUs give."""
    inside = {}
    for draw in {trial.draw for trial in mine if trial.selection == how}:
        together = _together(mine, how, draw)
        inside[draw] = covered(together, COVERAGE)
    return inside


def _together(mine: Sequence[Trial], how: str, draw: int) -> HeldOut:
    """Return the held-out predictions of all GPUs in one draw."""
    parts = [trial.held_out for trial in mine if (trial.selection, trial.draw) == (how, draw)]
    return HeldOut.together(parts[0].cells, parts)


def _figures(
    mine: Sequence[Trial], how: str, inside: Mapping[int, Any], among: Sequence[int]
) -> dict[str, float | int]:
    """Return MAPE and coverage in percent, means over the draws, each row with the same weight."""
    errors, coverage, n = [], [], 0
    for draw, hits in inside.items():
        predictions = _together(mine, how, draw)
        here = np.isin(predictions.gpu, among)
        n = int(here.sum())
        errors.append(np.abs(np.expm1(-predictions.log_ratio[here])).mean())
        coverage.append(hits[here].mean())
    return {
        "n": n,
        "mape": round(100.0 * float(np.mean(errors)), 2),
        "coverage_80": round(100.0 * float(np.mean(coverage)), 1),
    }


def report(results: Sequence[Result], most_train: int) -> Report:
    """Return a line per family, dtype and set of GPUs, and the summary; --results records every figure."""
    columns = {
        **dict.fromkeys(("family", "dtype", "gpu"), ""),
        "n": "d",
        **dict.fromkeys((NONE, PLAN, RANDOM), ".1f"),
        "left": ".2f",
        "held": ".0f",
    }
    rows = [(cell["family"], cell["dtype"], cell["gpu"], cell[PLAN]["n"], *_row(cell)) for cell in results]
    head = {"study": "calibration", "version": __version__, "commit": commit(), "rows": most_train}
    body = head | {"cells": results}
    protocol = _protocol(most_train)
    page = [*markdown(_short(results)), "", f"{protocol} Version {__version__}, commit {commit()}."]
    blocks: list[Block] = [f"gpucast {__version__}. {protocol}", Table("", columns, rows), "", summary(results)]
    return Report(blocks=blocks, body=body, record=body, pages={MARKER: page}, summaries={ROW: summary(results)})


def _row(cell: Result) -> tuple[float, ...]:
    """Return the errors without rows, with planned and with random ones, the share that is left, and the coverage."""
    return *(cell[how]["mape"] for how in (NONE, PLAN, RANDOM)), _left(cell), cell[PLAN]["coverage_80"]


def _short(results: Sequence[Result]) -> Table:
    """Return the table of docs/reference/results.md: the GPUs outside VALIDATION, and all."""
    rows = []
    for cell in results:
        if cell["gpu"] in (ALL, NOT_CHOSEN_ON):
            none, plan, *others = _row(cell)
            figures = none, bold(f"{plan:.1f}", _good(cell)), *others
            rows.append((f"{cell['family']} {cell['dtype']}", cell["gpu"], *figures))
    specs = ("", "", ".1f", ".1f", ".1f", ".2f", ".0f")
    columns = dict(zip(("family", "GPUs", NONE, PLAN, RANDOM, "left", "held, %"), specs, strict=True))
    return Table("", columns, rows)


def summary(cells: Sequence[Result]) -> str:
    """Return the error left after planned rows, as a share of the error without rows: a row of the summary table."""
    families = [cell for cell in cells if cell["gpu"] == ALL]
    good = sorted(_left(cell) for cell in families if _good(cell))
    better = sum(cell[PLAN]["mape"] < cell[RANDOM]["mape"] for cell in families)
    missed = [f"{cell['family']} {cell['dtype']} {_left(cell):.2f}" for cell in families if not _good(cell)]
    reached = f"{good[0]:.2f} to {good[-1]:.2f} in {len(good)}" if good else "goal reached in 0"
    text = f"{reached} of {len(families)} families (at most {MOST_LEFT:.2f})"
    text += f"; missed: {', '.join(missed)}" if missed else ""
    return f"{text}; less than with random rows in {better}"


def _left(cell: Result) -> float:
    """Return the error after planned rows over the error without rows."""
    return float(cell[PLAN]["mape"] / cell[NONE]["mape"])


def _good(cell: Result) -> bool:
    """Return whether planned rows leave at most MOST_LEFT of the error, and less than random rows do."""
    return _left(cell) <= MOST_LEFT and bool(cell[PLAN]["mape"] < cell[RANDOM]["mape"])


def _protocol(most_train: int) -> str:
    """Return a sentence on what was held out, measured and tested."""
    return (
        f"MAPE, %, of a GPU held out: nothing measured on it, {SHAPES} shapes of each family and dtype as planned"
        f", as many at random (mean of {DRAWS} draws). {most_train:,} training rows and {TESTED} test rows"
        " per operator, dtype and GPU."
    )
