"""What few measured rows are worth on a GPU that was not learned from: none, chosen ones, and random ones.

Each GPU is held out in turn. Per family and dtype SHAPES of its rows are told, chosen by what is expected of them
(learning.active_selection: nothing is known of their times) or drawn at random, a mean over DRAWS. Rows with the
dimensions of a told one are not asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from app.predictors.auto.operators.learning.active_selection import Prospect, chosen
from app.predictors.auto.operators.learning.learn import expected_errors
from app.predictors.auto.operators.models.gaussian_process import expected_noise
from app.tables.arrays import Ints
from app.tables.gpus import GpuTable
from app.tables.operator_runs import OperatorRuns
from app.training.operator_folds import first_rows, hashed
from app.training.operator_validation import HeldOut, answers

Told = Mapping[int, Ints]

SHAPES, DRAWS = 32, 3
NONE, PLAN, RANDOM = "none", "plan", "random"
# Rows of each operator and dtype that could be chosen, that stand for the workload, and that are asked.
CANDIDATES, WORKLOAD, ASKED = 400, 200, 600
# Rows told of a cell with fewer: a quarter.
_LEAST = 4


class Trial(NamedTuple):
    """Answers for rows of one family and dtype on the GPU held out, and how it was told of them."""

    told: str
    draw: int
    family: str
    dtype: str
    found: HeldOut


def trials(
    fitted: Any, runs: Sequence[OperatorRuns], gpus: GpuTable, target: int, family_of: Callable[[OperatorRuns], str]
) -> Iterator[Trial]:
    """Every family and dtype of `runs` that was measured on `target`, which `fitted` has not seen."""
    families: dict[tuple[str, str], list[int]] = {}
    for k, run in enumerate(runs):
        if (run.rows.gpu == target).any():
            families.setdefault((family_of(run), run.dtype), []).append(k)
    for (family, dtype), members in families.items():
        here = {k: np.flatnonzero(runs[k].rows.gpu == target) for k in members}
        count = min(SHAPES, sum(map(len, here.values())) // _LEAST)
        if count:
            told = [(NONE, 0, dict[int, Ints]()), (PLAN, 0, _planned(fitted, runs, gpus, here, count))]
            told += [(RANDOM, draw, _drawn(runs, here, count, draw)) for draw in range(DRAWS)]
            for how, draw, given in told:
                yield Trial(how, draw, family, dtype, _asked(fitted, runs, gpus, here, given))


def _planned(fitted: Any, runs: Sequence[OperatorRuns], gpus: GpuTable, here: Told, count: int) -> dict[int, Ints]:
    """The rows that the plan takes, by what is known before any is measured."""
    rows, prospects = {}, []
    for k, mine in here.items():
        rows[k] = first_rows(mine, runs[k].key, CANDIDATES, salt=3)
        asked = np.arange(min(WORKLOAD, len(rows[k])))
        covariance = expected_errors(fitted.operators_, runs[k].rows.take(rows[k]), gpus)
        assert covariance is not None  # of a GPU that was not learned from
        share = np.full(len(asked), len(mine) / len(asked))
        noise = expected_noise(int(runs[k].rows.ops.kind[0]))
        prospects.append(Prospect(covariance, noise, asked, share, np.arange(len(rows[k]))))
    taken: dict[int, list[int]] = {}
    for which, row in chosen(prospects, count):
        k = list(here)[which]
        taken.setdefault(k, []).append(int(rows[k][row]))
    return {k: np.array(some) for k, some in taken.items()}


def _drawn(runs: Sequence[OperatorRuns], here: Told, count: int, draw: int) -> dict[int, Ints]:
    """Rows of the family at random, always the same."""
    cell = np.concatenate([np.full(len(rows), k) for k, rows in here.items()])
    row = np.concatenate(list(here.values()))
    key = np.concatenate([runs[k].key[rows] for k, rows in here.items()])
    picked = first_rows(np.arange(len(row)), key, count, salt=100 + draw)
    return {int(k): row[picked[cell[picked] == k]] for k in np.unique(cell[picked])}


def _asked(fitted: Any, runs: Sequence[OperatorRuns], gpus: GpuTable, here: Told, given: Told) -> HeldOut:
    """Answers for the rows that were not told, nor others of the same dimensions."""
    told = fitted.with_measured([runs[k].take(rows) for k, rows in given.items()], gpus) if given else fitted
    parts = []
    for k, rows in here.items():
        shape = hashed(runs[k].rows.ops)
        rest = rows[~np.isin(shape[rows], shape[given[k]])] if k in given else rows
        parts.append(answers(told, runs, gpus, k, first_rows(rest, runs[k].key, ASKED, salt=2), 0))
    return HeldOut.together(parts[0].cells, parts)
