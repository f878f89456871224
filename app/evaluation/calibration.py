"""How much few measured rows help on a GPU that was not learned from, and whether the plan chooses them well."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from app.engine.curated import load_seed_specs
from app.errors import BadInput
from app.evaluation.operator_cells import read_cells
from app.evaluation.operators import family_of
from app.predictors.auto.predictor import Auto
from app.tables.gpus import GpuTable
from app.training.calibration_trial import NONE, PLAN, RANDOM, Trial, trials
from app.training.operator_folds import Cell, first_rows
from app.training.operator_validation import HeldOut, covered
from app.training.row_limits import MOST_TRAIN

Result = Mapping[str, Any]
ALL, NOT_CHOSEN_ON = "all", "not chosen on"
COVERAGE = 0.8
# The GPUs on which the constants of models.gaussian_process were set; figures are of the others.
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


@dataclass(frozen=True, slots=True)
class CalibrationStudy:
    """Figures per family, dtype and GPUs; `most_train` rows of each operator, dtype and GPU taught."""

    cells: tuple[Result, ...]
    most_train: int


def evaluate_calibration(
    folder: Path,
    *,
    families: Sequence[str] = (),
    gpus: Sequence[str] = (),
    most_train: int = MOST_TRAIN,
    progress: Callable[[str], None] = lambda line: None,
) -> CalibrationStudy:
    """Every GPU of `gpus` (all where none is named) held out in turn, on the data sets that `folder` holds."""
    table = GpuTable.from_specs(load_seed_specs())
    cells = list(read_cells(folder))
    known = list(dict.fromkeys(map(family_of, cells)))
    if unknown := [name for name in families if name not in known]:
        raise BadInput(f"Unknown family {unknown[0]!r}: use one of {', '.join(known)}.")
    wanted = [cell for cell in cells if not families or family_of(cell) in families]
    measured = sorted({int(gpu) for cell in wanted for gpu in np.unique(cell.runs.rows.gpu)})
    if strange := [name for name in gpus if name not in {table.ids[gpu] for gpu in measured}]:
        names = ", ".join(table.ids[gpu] for gpu in measured)
        raise BadInput(f"Nothing was measured on {strange[0]!r}: use one of {names}.")
    found: list[Trial] = []
    for target in measured:
        if not gpus or table.ids[target] in gpus:
            progress(f"{table.ids[target]} held out")
            found += _held_out(wanted, table, target, most_train)
    return CalibrationStudy(tuple(_results(found, table)), most_train)


def _held_out(cells: Sequence[Cell], gpus: GpuTable, target: int, most: int) -> Iterator[Trial]:
    """Trials on one GPU, in the cells that others were measured in too."""
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


def _results(found: Sequence[Trial], gpus: GpuTable) -> Iterator[Result]:
    """Figures of each family and dtype: of every GPU, of those not chosen on, and of all."""
    for family, dtype in dict.fromkeys((trial.family, trial.dtype) for trial in found):
        mine = [trial for trial in found if (trial.family, trial.dtype) == (family, dtype)]
        ids = sorted({gpus.ids[int(trial.held_out.gpu[0])] for trial in mine})
        others = [gpu for gpu in ids if gpu not in VALIDATION]
        held = {how: _inside(mine, how) for how in (NONE, PLAN, RANDOM)}
        for name, among in [(gpu, [gpu]) for gpu in ids] + [(NOT_CHOSEN_ON, others), (ALL, ids)]:
            if among:
                figures = {how: _figures(mine, how, held[how], [gpus.ids.index(gpu) for gpu in among]) for how in held}
                yield {"family": family, "dtype": dtype, "gpu": name, **figures}


def _inside(mine: Sequence[Trial], how: str) -> dict[int, Any]:
    """Per draw, which answers lie in intervals made of the other GPUs' answers."""
    held = {}
    for draw in {trial.draw for trial in mine if trial.selection == how}:
        together = _together(mine, how, draw)
        held[draw] = covered(together, COVERAGE)
    return held


def _together(mine: Sequence[Trial], how: str, draw: int) -> HeldOut:
    parts = [trial.held_out for trial in mine if (trial.selection, trial.draw) == (how, draw)]
    return HeldOut.together(parts[0].cells, parts)


def _figures(mine: Sequence[Trial], how: str, held: Mapping[int, Any], among: Sequence[int]) -> dict[str, float | int]:
    """MAPE and share inside the interval, percent, means over the draws: rows weigh alike."""
    errors, inside, n = [], [], 0
    for draw, hits in held.items():
        answers = _together(mine, how, draw)
        here = np.isin(answers.gpu, among)
        n = int(here.sum())
        errors.append(np.abs(np.expm1(-answers.log_ratio[here])).mean())
        inside.append(hits[here].mean())
    return {
        "n": n,
        "mape": round(100.0 * float(np.mean(errors)), 2),
        "coverage_80": round(100.0 * float(np.mean(inside)), 1),
    }
