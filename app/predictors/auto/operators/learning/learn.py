"""From measured rows to what `auto` knows of operators: which of them teach which cell, and with what beside them.

Before a cell is learned (learning.fitting) its rows gain what they are seen with: the tile of their
GPU's kernels, sizes that only other collectives have, places where nothing was measured. Few rows teach the cell that
answers for them, which may be another dtype's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from app.ops import OP_CODE, OPS
from app.ops.kinds import kinds_of
from app.predictors.auto.operators.collectives.interpolation import joined, with_interpolated_sizes
from app.predictors.auto.operators.learning.distillation_inputs import unmeasured
from app.predictors.auto.operators.learning.fitting import calibrated, kernels_of, learn
from app.predictors.auto.operators.learning.tile_choice import tiled
from app.predictors.auto.operators.model import CellKey, Learned, lent_with_care
from app.predictors.auto.operators.models.features import SHAPE_FEATURES, shape_features
from app.predictors.auto.operators.models.gaussian_process import View, expected
from app.predictors.auto.operators.models.per_operator import Cell
from app.predictors.auto.operators.models.ranges import extrapolation_distance
from app.predictors.auto.operators.models.training_samples import (
    architecture_keys,
    samples,
    usual_rows,
    with_isolated_rows,
)
from app.predictors.auto.operators.physics.analytic_model import ANY_TILE
from app.predictors.auto.operators.physics.operator_features import products_of
from app.predictors.links import by_link, runs_by_link
from app.predictors.priors import IS_COLLECTIVE
from app.tables.arrays import Floats, Ints
from app.tables.gpus import GpuTable
from app.tables.measurements import Measurements
from app.tables.operator_runs import OperatorRuns
from app.tables.ops import DTYPE_CODE, DTYPES, OpTable


def fit(known: Learned, runs: Sequence[OperatorRuns], gpus: GpuTable) -> Learned:
    """What is `known` with what `runs` teach; that of other operators, dtypes and GPUs stays."""
    runs, gpus = runs_by_link(runs, gpus)
    cells = dict(known.cells)
    usual = {(run.op, run.dtype): usual_rows(run) for run in runs}
    for key, rows in _with_interpolated_sizes({key: run.rows for key, run in usual.items()}, gpus).items():
        if len(rows):
            before = cells.get(key)
            found = with_isolated_rows(tiled(rows, gpus, (before or Cell()).tile), usual[key])
            blank = unmeasured(rows)
            found = replace(found, blank=(samples(blank, gpus).features, blank.gpu)) if len(blank) else found
            usual_tiles = found if (found.tile == ANY_TILE).all() else samples(rows, gpus)
            cells[key] = learn(found, SHAPE_FEATURES, before, usual_tiles)
    return Learned(cells)


def with_measured(known: Learned, runs: Sequence[OperatorRuns], gpus: GpuTable) -> Learned:
    """Corrected, at once, for GPUs of which `runs` hold some rows; GPUs with a model of their own keep it."""
    runs, gpus = runs_by_link(runs, gpus)
    cells, told = dict(known.cells), dict[CellKey, list[Measurements]]()
    for run in runs:
        rows = usual_rows(run).rows
        for key, here in _homes(known, rows.ops):
            told.setdefault(key, []).append(rows.take(here))
    for key, parts in told.items():
        taught = _taught(known, key, gpus)
        cells[key] = calibrated(tiled(joined(parts), gpus, taught.tile), taught)
    return Learned(cells, known.tree_arena)


def _homes(known: Learned, ops: OpTable) -> list[tuple[CellKey, Ints]]:
    """Cells that rows of one operator and dtype teach, each with its rows.

    That dtype's; of a collective the one that answers for them on a GPU of which nothing is known.
    """
    if not len(ops):
        return []
    kind, dtype = int(ops.kind[0]), int(ops.dtype[0])
    keys, able = list(known.cell_rows.values()), [row for row in known.cell_of[kind, dtype].tolist() if row >= 0]
    home = [(OPS[kind].name, DTYPES[dtype]), *(keys[row] for row in able[1:])]
    if len(home) == 1:
        return [(home[0], np.arange(len(ops)))]
    kinds = kinds_of(ops)
    shape = shape_features(kinds, products_of(kinds), len(ops))
    ranges = [(known.cells[keys[row]].low, known.cells[keys[row]].high) for row in able]
    far = np.array([[extrapolation_distance(shape, row, low, high) for row in range(len(ops))] for low, high in ranges])
    nearest = far.argmin(axis=0)
    return [(home[k], np.flatnonzero(nearest == k)) for k in np.unique(nearest).tolist()]


def expected_errors(known: Learned, rows: Measurements, gpus: GpuTable) -> Floats | None:
    """Covariance of the errors of these rows, of one operator, dtype and GPU, while none is measured, [n, n].

    Their times are not looked at. None where the GPU has a model of its own, which few rows do not change.
    """
    gpus, on = by_link(rows.ops, gpus, np.arange(len(rows)), rows.gpu)
    rows = replace(rows, gpu=on)
    homes = [(key, here[on[here] == gpu]) for key, here in _homes(known, rows.ops) for gpu in np.unique(on[here])]
    parts = [(here, _expected_errors(_taught(known, key, gpus), rows.take(here), gpus)) for key, here in homes]
    if all(part is None for _, part in parts):
        return None
    covariance = np.zeros((len(rows), len(rows)))
    for here, part in parts:
        if part is not None:
            covariance[np.ix_(here, here)] = part
    return covariance


def _expected_errors(cell: Cell, rows: Measurements, gpus: GpuTable) -> Floats | None:
    """As `expected_errors`, of rows that all teach one cell."""
    gpu = int(rows.gpu[0])
    name, architecture = gpus.ids[gpu], architecture_keys(gpus, collective=bool(IS_COLLECTIVE[rows.ops.kind[0]]))[gpu]
    if name in cell.own and cell.own[name].alone and name not in cell.lenders:
        return None
    found, kernels = samples(rows, gpus, np.full(len(rows), cell.tile(name, architecture))), kernels_of(cell.shared)
    view = View.of(found.features, found.places, kernels)
    return expected(view, found.terms, cell.others(name, architecture).factors, kernels)


def _taught(known: Learned, key: CellKey, gpus: GpuTable) -> Cell:
    """What rows of an operator and dtype add to: its own cell, that of a dtype like it as lent, or nothing."""
    if key in known.cells:
        return known.cells[key]
    row = int(known.cell_of[OP_CODE[key[0]], DTYPE_CODE[key[1]], 0])
    lender = None if row < 0 else list(known.cell_rows.values())[row]
    if lender is None:
        return Cell.empty(SHAPE_FEATURES)
    careful = lent_with_care(lender, key[1]) and not IS_COLLECTIVE[OP_CODE[key[0]]]
    return known.cells[lender].as_borrowed(known.emulating(gpus) if careful else frozenset())


def _with_interpolated_sizes(usual: Mapping[CellKey, Measurements], gpus: GpuTable) -> dict[CellKey, Measurements]:
    """Rows as given, those of collectives with what others say of sizes between theirs."""
    collectives = [key for key in usual if IS_COLLECTIVE[OP_CODE[key[0]]] and len(usual[key])]
    if not collectives:
        return dict(usual)
    filled = with_interpolated_sizes([usual[key] for key in collectives], gpus)
    return {**usual, **dict(zip(collectives, filled, strict=True))}
