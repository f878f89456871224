"""Trial of few-shot calibration on held-out GPUs: without measured rows, with selected rows, and with random rows.

Each GPU is held out in turn. Per family and dtype the predictor is given SHAPES of its rows, selected by their expected
gain (app.predictors.active_selection, without their times) or drawn at random (mean over DRAWS). Rows with the
dimensions of a given row are not tested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from app.predictors.active_selection import Prospect, chosen
from app.predictors.auto.operators.learning.learn import expected_errors
from app.predictors.auto.operators.models.gaussian_process import expected_noise
from app.tables.arrays import Ints
from app.tables.gpus import GpuTable
from app.tables.operator_runs import OperatorRuns
from app.training.operator_validation import HeldOut, answers
from app.training.row_hashes import dimensions
from evaluation.operators.folds import first_rows

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
