"""Few-shot calibration of a left-out GPU: error and coverage with no rows, with planned rows and with random rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from app import __version__
from app.bands.coverage import COVERAGE
from app.engine.catalogue import load_seed_specs
from app.errors import BadInput
from app.ops import OP_CODE
from app.predictors.auto.predictor import Auto
from app.predictors.fitted_once import fitted_once
from app.tables.gpus import GpuTable
from app.training.operator_validation import HeldOut, covered
from app.training.row_limits import MOST_TRAIN
from evaluation.data import Cell, read_cells
from evaluation.operators.calibration_trial import DRAWS, NONE, PLAN, RANDOM, SHAPES, TESTED, Trial, trials
from evaluation.operators.evaluate import family_of, operators_of
from evaluation.operators.folds import first_rows
from evaluation.render import Block, Report, Table, bold, commit, markdown
from evaluation.study import Progress, Result

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
