"""Training of all cells from measured rows, and calibration of them to a few rows of a GPU.

Before a cell is fitted (learning.fitting) its rows get the tile of their GPU's kernels, interpolated sizes of
collectives, and distillation inputs. A few rows calibrate the cell that answers for them, which may be another dtype's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from app.coefficients import Coefficients
from app.ops import OP_CODE, OPS, kinds_of
from app.predictors.auto.operators.cell_choice import LIKE, CellKey, emulating, extrapolation_distance
from app.predictors.auto.operators.learning.collective_interpolation import with_interpolated_sizes
from app.predictors.auto.operators.learning.distillation import unmeasured
from app.predictors.auto.operators.learning.fitting import (
    ENOUGH,
    TRIAL_ROWS,
    calibrated,
    kernels_of,
    learn,
    renews_shared,
    shared_by,
)
from app.predictors.auto.operators.model import Learned
from app.predictors.auto.operators.models.features import shape_features
from app.predictors.auto.operators.models.gaussian_process import Places, View, expected
from app.predictors.auto.operators.models.per_operator import Cell, Model
from app.predictors.auto.operators.models.training_samples import (
    Samples,
    architecture_keys,
    samples,
    usual_rows,
    with_isolated_rows,
)
from app.predictors.links import by_link, runs_by_link
from app.predictors.physics.analytic_model import ANY_TILE
from app.predictors.physics.operator_features import products_of
from app.predictors.physics.physics_fit import fitted_factors
from app.predictors.priors import IS_COLLECTIVE, TILES_OF_KIND
from app.tables.arrays import Floats, Ints
from app.tables.gpus import GpuTable
from app.tables.measurements import Measurements, OperatorRuns, stacked
from app.tables.ops import DTYPE_CODE, DTYPES, OpTable

_FITTED = Coefficients("learning")

# Least rows of a GPU to choose from, and the largest ratio of the deviation with the new tile to that with the old one.
LEAST_ROWS, BETTER = 16, _FITTED.number("better_tile")


def tiles(kind: int) -> range:
    """Rows of CANDIDATES that can be the single tile of an operator, by code; empty for operators of many kernels."""
    return range(TILES_OF_KIND[kind] if OPS[kind].batched else 0)


def tiled(rows: Measurements, gpus: GpuTable, before: Cell) -> Samples:
    """Training samples of one operator in one dtype, with the tile chosen by the rows of each GPU.

    The tile by other GPUs of the cell `before` stays where the rows do not show another.
    """
    training = samples(rows, gpus)
    if not len(rows) or not tiles(int(rows.ops.kind[0])):
        return training
    tile = np.full(len(rows), ANY_TILE)
    for gpu in np.unique(rows.gpu).tolist():
        mine = np.flatnonzero(rows.gpu == gpu)
        known = before.others(training.names[gpu], training.architectures[gpu]).tile
        tile[mine] = _of_gpu(rows.take(mine), gpus, known)
    return samples(rows, gpus, tile)


def _of_gpu(rows: Measurements, gpus: GpuTable, known: int) -> int:
    """The tile of one GPU's rows."""
    if len(rows) < LEAST_ROWS:
        return known
    rows = rows.take(np.random.default_rng(0).permutation(len(rows))[:TRIAL_ROWS])
    off = {tile: _deviation(rows, gpus, tile) for tile in (ANY_TILE, *tiles(int(rows.ops.kind[0])))}
    best = min(off, key=lambda tile: off[tile])
    return best if off[best] < BETTER * off[known] else known


def _deviation(rows: Measurements, gpus: GpuTable, tile: int) -> float:
    """Mean absolute log error of the physics with fitted constants and this tile."""
    training = samples(rows, gpus, np.full(len(rows), tile))
    return float(np.abs(training.residual(fitted_factors(training.terms, training.latency_s))).mean())


def fit(known: Learned, runs: Sequence[OperatorRuns], gpus: GpuTable) -> Learned:
    """`known` with the cells of `runs` trained; those of other operators, dtypes and GPUs stay.

    Few rows whose dtype may borrow get no cell: they would keep every other GPU from what the other dtype taught. They
    can still calibrate the borrowed cell on their GPU (`corrections`).
    """
    runs, gpus = runs_by_link(runs, gpus)
    cells = dict(known.cells)
    usual = {(run.op, run.dtype): usual_rows(run) for run in runs}
    rows = with_interpolated_sizes({key: run.rows for key, run in usual.items()}, gpus)
    given = [key for key in rows if len(rows[key])]
    borrowing = {key for key in given if _borrows(key, rows, known.cells)}
    for keys in _sharing([key for key in given if key not in borrowing]):
        taught = {key: _taught(rows[key], usual[key], gpus, cells.get(key)) for key in keys}
        renewed = [key for key, (training, _) in taught.items() if renews_shared(training, cells.get(key))]
        shared = shared_by([taught[key][1] for key in renewed])
        for key, (training, _) in taught.items():
            cells[key] = learn(training, cells.get(key), shared if key in renewed else None)
    return Learned({key: cell for key, cell in cells.items() if key not in borrowing})


def _borrows(key: CellKey, rows: Mapping[CellKey, Measurements], cells: Mapping[CellKey, Cell]) -> bool:
    """Whether each GPU has few of the rows `key`, and a format of the same pipe more, or a cell that none renew."""
    op, dtype = key
    like = op, LIKE.get(dtype, "")
    if IS_COLLECTIVE[OP_CODE[op]] or np.bincount(rows[key].gpu).max() >= ENOUGH:
        return False
    if key in cells and any(model.of_many_rows for model in cells[key].own.values()):
        return False
    return len(rows[like]) > len(rows[key]) if like in rows else like in cells


def _sharing(keys: Iterable[CellKey]) -> list[list[CellKey]]:
    """The cells that share a model: the dtypes of an operator of few configurations, each of any other alone.

    Each dtype of such an operator was measured in other layers, and on other GPUs.
    """
    groups = dict[CellKey, list[CellKey]]()
    for key in keys:
        op = OPS[OP_CODE[key[0]]]
        groups.setdefault((op.name, "") if op.few_configurations and op.pattern is None else key, []).append(key)
    return list(groups.values())


def _taught(rows: Measurements, usual: OperatorRuns, gpus: GpuTable, before: Cell | None) -> tuple[Samples, Samples]:
    """The samples of a cell for the models of single GPUs, and those with the usual tiles for the shared model.

    The shared model serves GPUs of unknown tile.
    """
    training = with_isolated_rows(tiled(rows, gpus, before or Cell()), usual)
    blank = unmeasured(rows)
    training = replace(training, blank=(samples(blank, gpus).features, blank.gpu)) if len(blank) else training
    return training, training if (training.tile == ANY_TILE).all() else samples(rows, gpus)


# Models of GPUs by their ids, each with the GPU's architecture key, for every cell that they correct.
Corrections = Mapping[CellKey, Mapping[str, tuple[Model, str]]]


def corrections(known: Learned, runs: Sequence[OperatorRuns], gpus: GpuTable) -> Corrections:
    """The calibration of `known` to the GPUs of `runs`, without training; GPUs with a model of their own have none.

    Those of an operator on a GPU depend on no other operator and GPU. Takes up to a second for each.
    """
    runs, gpus = runs_by_link(runs, gpus)
    given, models = dict[CellKey, list[Measurements]](), dict[CellKey, dict[str, tuple[Model, str]]]()
    for run in runs:
        rows = usual_rows(run).rows
        for key, here in _homes(known, rows.ops):
            given.setdefault(key, []).append(rows.take(here))
    for key, parts in given.items():
        base = _base(known, key, gpus)
        models[key] = calibrated(tiled(stacked(parts), gpus, base), base)
    return models


def corrected(known: Learned, parts: Iterable[Corrections], gpus: GpuTable) -> Learned:
    """`known` with corrections of distinct operators or GPUs, as `corrections` returns them."""
    cells = dict(known.cells)
    for key, models in ((key, models) for part in parts for key, models in part.items()):
        base = cells[key] if key in cells else _base(known, key, gpus)
        own = {**base.own, **{gpu: model for gpu, (model, _) in models.items()}}
        architecture = {**base.architecture, **{gpu: of for gpu, (_, of) in models.items()}}
        cells[key] = replace(base, own=own, architecture=architecture)
    return Learned(cells, known.tree_arena)


def _homes(known: Learned, ops: OpTable) -> list[tuple[CellKey, Ints]]:
    """The cells that rows of one operator and dtype calibrate, each with its rows, int [m].

    The cell of that dtype; for a collective the one that answers for the rows on an unseen GPU.
    """
    if not len(ops):
        return []
    kind, dtype = int(ops.kind[0]), int(ops.dtype[0])
    keys, able = known.choice.keys, [row for row in known.choice.cell[kind, dtype].tolist() if row >= 0]
    home = [(OPS[kind].name, DTYPES[dtype]), *(keys[row] for row in able[1:])]
    if not IS_COLLECTIVE[kind] or len(home) == 1:
        return [(home[0], np.arange(len(ops)))]
    kinds = kinds_of(ops)
    shape = shape_features(kinds, products_of(kinds), len(ops))
    cells, rows = [known.cells[keys[row]] for row in able], range(len(ops))
    distance = np.array([[extrapolation_distance(shape, row, cell.low, cell.high) for row in rows] for cell in cells])
    nearest = distance.argmin(axis=0)
    return [(home[k], np.flatnonzero(nearest == k)) for k in np.unique(nearest).tolist()]


def expected_errors(known: Learned, rows: Measurements, gpus: GpuTable) -> Floats | None:
    """Prior covariance of the log errors of rows of one operator, dtype and GPU, float64 [n, n].

    Their times are not used. None where the GPU has a model of its own, which few rows do not change.
    """
    gpus, on = by_link(rows.ops, gpus, np.arange(len(rows)), rows.gpu)
    rows = replace(rows, gpu=on)
    homes = [(key, here[on[here] == gpu]) for key, here in _homes(known, rows.ops) for gpu in np.unique(on[here])]
    covariance, some = np.zeros((len(rows), len(rows))), False
    for key, here in homes:
        if (part := _expected_errors(_base(known, key, gpus), rows.take(here), gpus)) is not None:
            covariance[np.ix_(here, here)], some = part, True
    return covariance if some else None


def _expected_errors(cell: Cell, rows: Measurements, gpus: GpuTable) -> Floats | None:
    """As `expected_errors`, of rows that all calibrate one cell."""
    gpu = int(rows.gpu[0])
    name, architecture = gpus.ids[gpu], architecture_keys(gpus, collective=bool(IS_COLLECTIVE[rows.ops.kind[0]]))[gpu]
    if cell.stands_alone(name):
        return None
    others, kernels = cell.others(name, architecture), kernels_of(cell.shared)
    inputs = samples(rows, gpus, np.full(len(rows), others.tile))
    view = View.of(inputs.features, Places.of_few(inputs.kind), kernels)
    return expected(view, inputs.terms, others.factors, kernels)


def _base(known: Learned, key: CellKey, gpus: GpuTable) -> Cell:
    """The cell that rows of an operator and dtype calibrate: its own, a borrowed one, or an empty one."""
    if key in known.cells:
        return known.cells[key]
    row = int(known.choice.cell[OP_CODE[key[0]], DTYPE_CODE[key[1]], 0])
    if row < 0:
        return Cell()
    borrower, lender = list(known.choice.rows.items())[row]
    native = borrower != lender and not IS_COLLECTIVE[OP_CODE[key[0]]]
    return known.cells[lender].as_borrowed(emulating(gpus) if native else frozenset())
