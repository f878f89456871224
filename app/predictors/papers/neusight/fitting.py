"""Training of `tilewave`: measured tiles per operator, and one network per family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from app.ops import OP_CODE, OPS
from app.ops.base import Op
from app.predictors.papers.known_gpus import KnownGpus
from app.predictors.papers.neusight.equations import PRODUCTS, Kernels, decompose, devices_of, family_of, kernels_of
from app.predictors.papers.neusight.measured_tiles import Tiles, tiles_of_grids, tiles_of_kernels
from app.predictors.papers.neusight.network import Examples, Network
from app.predictors.papers.neusight.operator_model import OperatorModel, figures_of, tiles_for
from app.tables.arrays import Bools, Floats, Ints
from app.tables.gpus import GpuTable
from app.tables.operator_runs import OperatorRuns
from app.tables.ops import DTYPE_CODE

# Most rows per network, evenly from its GPUs, and least rows for a network.
MOST_ROWS, LEAST_ROWS = 60_000, 50
# Weight decay by family. More is better on held-out GPUs, but worse on held-out sizes of linear and element-wise.
DECAY = {"bmm": 1.0, "linear": 0.1, "elementwise": 0.1, "softmax": 1.0, "layer_norm": 1.0}


class Rows(NamedTuple):
    """Measured kernels of one operator, n of them: tiles [2, n] are NaN where unknown, latency in seconds."""

    op: Op
    kernels: Kernels
    tile: Floats
    gpu: Ints
    latency_s: Floats


def learn(
    runs: Sequence[OperatorRuns], gpus: GpuTable, known: Mapping[tuple[str, str], OperatorModel]
) -> dict[tuple[str, str], OperatorModel]:
    """Return the models of families with LEAST_ROWS rows in a dtype, by operator and dtype; keeps `known` tiles."""
    families = {(family, run.dtype) for run in runs if (family := family_of(OPS[OP_CODE[run.op]])) is not None}
    learned: dict[tuple[str, str], OperatorModel] = {}
    for family, dtype in sorted(families):
        of_it = (run for run in runs if (family_of(OPS[OP_CODE[run.op]]), run.dtype) == (family, dtype))
        rows = [part for part in map(measured, of_it) if len(part.gpu)]
        tiles = {part.op.name: known[cell].tiles for part in rows if (cell := (part.op.name, dtype)) in known}
        if sum(len(part.gpu) for part in rows) >= LEAST_ROWS:
            found = _family(rows, dtype, gpus, tiles, DECAY[family])
            learned |= {(op, dtype): cell for op, cell in found.items()}
    return learned


def measured(run: OperatorRuns) -> Rows:
    """Return rows that are a single kernel (products: forward only), with their tiles."""
    op = OPS[OP_CODE[run.op]]
    if family_of(op) in PRODUCTS:
        run = run.take(np.flatnonzero(run.rows.ops.column("backward") == 0.0))
        tile = tiles_of_kernels(run.kernel, run.kernels)
    else:
        tile = tiles_of_grids(run.rows.ops.column("b") * run.rows.ops.column("h"), run.grid)
    found = kernels_of(op, run.rows.ops, DTYPE_CODE[run.dtype])
    empty = Kernels(np.empty((4, 0)), op.work(run.rows.ops))
    return Rows(op, found[0][1] if found else empty, tile, run.rows.gpu, run.rows.latency_s)


def _family(
    rows: Sequence[Rows], dtype: str, gpus: GpuTable, known: Mapping[str, Tiles], decay: float
) -> dict[str, OperatorModel]:
    """Return the models of one family's operators in one dtype, with a shared network."""
    tiles = [_tiles(part, dtype, gpus, known.get(part.op.name)) for part in rows]
    parts = [_examples(part, of_it, dtype, gpus) for part, of_it in zip(rows, tiles, strict=True)]
    examples = Examples(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    gpu = np.concatenate([part.gpu for part in rows])
    chosen = evenly(gpu, np.logical_and.reduce(np.isfinite(examples.inputs), axis=1))
    network = Network.fit(examples.take(chosen), decay=decay)
    seen = KnownGpus.of(gpus, np.unique(gpu[chosen]).tolist())
    return {
        part.op.name: OperatorModel(
            network, of_it, seen, np.stack([part.kernels.sizes.min(1), part.kernels.sizes.max(1)])
        )
        for part, of_it in zip(rows, tiles, strict=True)
    }


def _tiles(rows: Rows, dtype: str, gpus: GpuTable, known: Tiles | None) -> Tiles:
    """Return the measured tiles, and the known ones of other GPUs."""
    figures = figures_of(devices_of(gpus, rows.op, DTYPE_CODE[dtype]))
    new = Tiles.measured(rows.kernels.sizes, rows.tile, rows.gpu, gpus.ids, figures)
    return new if known is None else new.over(known)


def _examples(rows: Rows, tiles: Tiles, dtype: str, gpus: GpuTable) -> Examples:
    """Return the training rows of measured kernels, with measured tiles if known."""
    code = DTYPE_CODE[dtype]
    devices = devices_of(gpus, rows.op, code)
    guess = tiles_for(rows.op, rows.kernels, tiles, gpus, devices, rows.gpu)
    tile = np.where(np.isnan(rows.tile), guess, rows.tile)
    found = decompose(rows.kernels, tile, devices.take(rows.gpu), rows.op, code)
    return Examples(found.inputs, found.waves, found.ideal_s, rows.latency_s)


def evenly(gpu: Ints, usable: Bools) -> Ints:
    """Return at most MOST_ROWS usable rows, equally many per GPU if available, in order."""
    parts = [np.flatnonzero(usable & (gpu == code)) for code in np.unique(gpu)]
    draw, share = np.random.default_rng(0), MOST_ROWS // len(parts)
    chosen = [part if len(part) <= share else draw.choice(part, share, replace=False) for part in parts]
    return np.sort(np.concatenate(chosen))
