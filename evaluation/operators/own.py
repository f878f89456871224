"""Errors of predictors on operators that `gpucast measure` measured, with and without such rows in training.

public    training on the public data sets only; "public, fifth": tested on the rows of held_out
sibling   the same, and the measured rows of every GPU but the tested one
held_out  the same, and the measured rows of all GPUs but a fifth of the configurations, which is tested
k_sweep   training on the measured rows of the tested GPU alone, but for every second depth of the K sweeps, which is
          tested: PM2Lat's interpolation
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from app.engine.catalogue import load_seed_specs
from app.errors import BadInput
from app.ops.suite import SWEEP_DEPTHS, SWEEP_SIDES
from app.predictors.fitted_once import fitted_once
from app.tables.arrays import Bools
from app.tables.gpus import GpuTable
from app.training.row_hashes import configurations, fifths
from evaluation.data import OWN, Cell, read_cells
from evaluation.operators.evaluate import AS_MEASURED, contenders, errors_by_part
from evaluation.operators.folds import EvaluationSet, OperatorFold, Rows, fewer, nonempty
from evaluation.operators.scores import CellErrors, score_rows
from evaluation.render import Report, Table
from evaluation.study import Progress, Result, chosen, grouped

PROTOCOL = "own"
SWEPT = ("linear", "bmm")
# Public rows per cell and GPU to train on.
MOST_PUBLIC = 800
_PLACE = ("family", "gpu", "part", "predictor")
_FIGURES = ("mape", "median_ape", "p95_ape", "median_ratio")


def evaluate_own_operators(
    folder: Path,
    files: Sequence[Path],
    predictors: Sequence[str],
    *,
    most_public: int = MOST_PUBLIC,
    progress: Progress = lambda line: None,
) -> list[Result]:
    """Return the scores of `predictors` on the operators in `files`, beside the public data sets in `folder`.

    `most_public` limits public training rows per operator, dtype and GPU. Raises BadInput for an unknown predictor, or
    where the files hold no operator.
    """
    running = chosen("predictor", {each.name: each._replace(holds_out=False) for each in contenders()}, predictors)
    gpus = GpuTable.from_specs(load_seed_specs())
    progress(f"reading {folder}")
    cells = read_cells(folder, own=files)
    if not any((cell.split == OWN).any() for cell in cells):
        raise BadInput("The files hold no operator: measure some with --suite operators.")
    errors: dict[tuple[str, str], list[CellErrors]] = defaultdict(list)
    with fitted_once():
        for fold in own_folds(cells, gpus.ids, most_public):
            for name, contender in running.items():
                progress(f"{fold.name}: {name}")
                for _, part, in_part in errors_by_part(contender, cells, gpus, fold):
                    if part != AS_MEASURED:  # host drift is not in our rows
                        errors[part, name] += in_part
    return [
        {"part": part, "predictor": name, **cell}
        for (part, name), in_part in errors.items()
        for cell in score_rows(in_part, gpus.ids, ())
    ]


def own_folds(cells: Sequence[Cell], gpus: Sequence[str], most_public: int) -> Iterator[OperatorFold]:
    """Yield the folds that have test rows, those trained on public rows first."""
    return (fold for fold in _folds(cells, gpus, most_public) if fold.evaluation_sets[0].test)


def _folds(cells: Sequence[Cell], gpus: Sequence[str], most_public: int) -> Iterator[OperatorFold]:
    own = [cell.split == OWN for cell in cells]
    public = fewer(cells, nonempty({k: ~mine for k, mine in enumerate(own)}), most_public)
    held = [mine & (fifths(configurations(cell.runs)) == 0) for mine, cell in zip(own, cells, strict=True)]
    yield _fold(public, "public", own)
    yield _fold(public, "public, fifth", held)
    yield _fold(_with(public, [mine & ~out for mine, out in zip(own, held, strict=True)]), "held_out", held)
    for target in sorted({int(gpu) for cell, mine in zip(cells, own, strict=True) for gpu in cell.runs.rows.gpu[mine]}):
        here = [mine & (cell.runs.rows.gpu == target) for mine, cell in zip(own, cells, strict=True)]
        others = [mine & ~on for mine, on in zip(own, here, strict=True)]
        if any(mine.any() for mine in others):
            yield _fold(_with(public, others), "sibling", here, gpus[target])
        swept = [on & _every_second_depth(cell) for on, cell in zip(here, cells, strict=True)]
        rest = nonempty({k: on & ~out for k, (on, out) in enumerate(zip(here, swept, strict=True)) if out.any()})
        if rest:
            yield _fold(rest, "k_sweep", swept, gpus[target])


def _fold(train: Rows, part: str, test: Sequence[Bools], gpu: str = "") -> OperatorFold:
    """Return a fold; only operators and dtypes that are trained on are tested."""
    rows = {k: mine for k, mine in nonempty(dict(enumerate(test))).items() if k in train}
    return OperatorFold(f"{part} {gpu}".strip(), train, (EvaluationSet(PROTOCOL, part, {}, rows),))


def _with(public: Rows, own: Sequence[Bools]) -> Rows:
    """Return public rows and our own."""
    mine = nonempty(dict(enumerate(own)))
    return {k: np.union1d(public.get(k, ()), mine.get(k, ())).astype(np.intp) for k in sorted({*public, *mine})}


def _every_second_depth(cell: Cell) -> Bools:
    """Return where a row is of a K sweep, at a depth between two others, bool [n]."""
    table = cell.runs.rows.ops
    if cell.runs.op not in SWEPT:
        return np.zeros(len(table), dtype=np.bool_)
    m, n, k = (table.column(name) for name in "mnk")
    inside: Bools = (m == n) & np.isin(m, SWEEP_SIDES) & np.isin(k, SWEEP_DEPTHS[1:-1:2])
    return inside


def report(results: Sequence[Result]) -> Report:
    """Return a line per family, GPU, part and predictor; "all" GPUs together first."""
    pooled = [max(alike, key=lambda result: int(result["n"])) for alike in grouped(results, _place).values()]
    columns = dict.fromkeys(_PLACE, "") | {"n": "d"} | dict.fromkeys(_FIGURES, ".2f")
    rows = [[result[name] for name in columns] for result in sorted(pooled, key=_place)]
    return Report(blocks=[Table("", columns, rows)], body={"study": "own-operators", "cells": results})


def _place(result: Result) -> tuple[str, ...]:
    return tuple(str(result[name]) for name in _PLACE)
