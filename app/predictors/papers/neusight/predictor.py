"""NeuSight (Lee, Phanishayee and Mahajan, ASPLOS 2025): tiles, waves and learned utilisation.

Five families, bmm, linear, element-wise, softmax and layer norm, have a network each, per dtype, that gives alpha and
beta of utilisation = alpha - beta / waves from table 3's features (papers.neusight.equations, network). Any other
operator is taken as bound by memory: bytes / bandwidth.

Differs from the paper: the choice of tiles (papers.neusight.measured_tiles); element-wise tiles cut the flattened
tensor, as PyTorch's kernels do, rather than each row; FLOPs and bytes are those of app.ops; a smaller network, whose
inputs stay within what it learned from. Launches and clocks are no inputs, as in the paper: what the host adds, and a
clock under boost, end up in the utilisation. Collectives, which the paper predicts by their links, are left to the
hardware limit, and so is a family in a dtype that was not learned.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from app.bands.groups import S_SEEN, S_UNTRAINED
from app.errors import NotTrained
from app.ops import OP_CODE, OPS
from app.ops.base import Op
from app.ops.gemm import CANDIDATES
from app.predictors.papers.base import LAYOUT, Cell, CellPredictor, KnownGpus, cell_key
from app.predictors.papers.neusight.equations import (
    ELEMENTWISE,
    INPUTS,
    PRODUCTS,
    SIZES,
    Decomposed,
    Devices,
    Kernels,
    Tiles,
    decompose,
    devices_of,
    family_of,
    kernels_of,
    tiles_of_grids,
    tiles_of_kernels,
)
from app.predictors.papers.neusight.network import Examples, Network, utilisation
from app.predictors.schema import Layout
from app.tables.arrays import Bools, Floats, Ints
from app.tables.gpus import GpuTable
from app.tables.measurements import OperatorRuns
from app.tables.ops import DTYPE_CODE

# PyTorch's element-wise kernels: blocks of 128 threads, four elements each.
ELEMENTS_OF_BLOCK = 512.0


@dataclass(frozen=True, slots=True, eq=False)
class OperatorModel:
    """One cell.

    network  shared by the operators of a family that were learned together
    tiles    measured ones
    gpus     those that the network learned from
    span     float64 [2, 4], least and most of each dimension learned from
    """

    network: Network
    tiles: Tiles
    gpus: KnownGpus
    span: Floats

    def answer(self, cell: Cell, gpus: GpuTable) -> tuple[Floats, Ints]:
        """Return seconds [m] and situations [m] of queries; backward of a product is the sum of its two kernels."""
        dtype = DTYPE_CODE[cell.dtype]
        devices = devices_of(gpus, cell.op, dtype)
        latency, situation = np.zeros(len(cell.gpu)), np.full(len(cell.gpu), S_SEEN)
        for rows, kernels in kernels_of(cell.op, cell.ops, dtype):
            gpu = cell.gpu[rows]
            tile = tiles_for(cell.op, kernels, self.tiles, gpus, devices, gpu)
            decomposed = decompose(kernels, tile, devices.take(gpu), cell.op, dtype)
            latency[rows] += latency_s(decomposed, self.network)
            outside = (kernels.sizes < self.span[0, :, None]) | (kernels.sizes > self.span[1, :, None])
            known = self.gpus.situations(gpus, gpu, np.logical_or.reduce(outside))
            situation[rows] = np.maximum(situation[rows], known)
        return latency, situation

    def state(self) -> dict[str, Any]:
        """All but the network, which cells share."""
        return {"tiles": self.tiles.state(), "gpus": self.gpus.state(), "span": self.span}

    @classmethod
    def of(cls, network: Network, state: Mapping[str, Any]) -> Self:
        """Return the object of a `state`, with its network."""
        return cls(network, Tiles.from_state(state["tiles"]), KnownGpus.from_state(state["gpus"]), state["span"])


def latency_s(decomposed: Decomposed, network: Network) -> Floats:
    """Return latency at full utilisation over the utilisation (equations 4 to 8), seconds [n]."""
    alpha, beta = network.predict(decomposed.inputs)
    return decomposed.ideal_s / utilisation(alpha, beta, decomposed.waves)


def tiles_for(op: Op, kernels: Kernels, tiles: Tiles, gpus: GpuTable, devices: Devices, gpu: Ints) -> Floats:
    """Return tiles of kernels on GPU rows `gpu`, float64 [2, n]: from measured ones, else common library tiles."""
    if tiles.gpus:
        rows, back = np.unique(gpu, return_inverse=True)
        whose = tiles.nearest_gpus([gpus.ids[k] for k in rows], log_figures_of(devices.take(rows)))
        return tiles.choose(kernels.sizes, whose[back])
    if family_of(op) not in PRODUCTS:
        return np.stack([np.ones(len(gpu)), np.full(len(gpu), ELEMENTS_OF_BLOCK)])
    return even_tiles(kernels.sizes, devices.sms[gpu])


def even_tiles(sizes: Floats, sms: Floats) -> Floats:
    """Return the candidate tile whose full waves waste least, the first (largest) of equals, float64 [2, n]."""
    batch, rows, columns, _ = sizes
    height, width = CANDIDATES.T[:, :, None]
    waves = np.ceil(batch * np.ceil(rows / height) * np.ceil(columns / width) / sms)
    tile: Floats = np.ascontiguousarray(CANDIDATES[(waves * height * width).argmin(axis=0)].T)
    return tile


def log_figures_of(devices: Devices) -> Floats:
    """Return natural logs of the figures by which GPUs are compared, float64 [5, n]; unknown ones are 0."""
    logs: Floats = np.nan_to_num(np.log(np.stack(devices)))
    return logs


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


def learn(runs: Sequence[OperatorRuns], gpus: GpuTable, known: Mapping[str, OperatorModel]) -> dict[str, OperatorModel]:
    """Return the models of families with LEAST_ROWS rows in a dtype, by cell; keeps the tiles of `known`."""
    families = {(family, run.dtype) for run in runs if (family := family_of(OPS[OP_CODE[run.op]])) is not None}
    learned: dict[str, OperatorModel] = {}
    for family, dtype in sorted(families):
        of_it = (run for run in runs if (family_of(OPS[OP_CODE[run.op]]), run.dtype) == (family, dtype))
        rows = [part for part in map(measured, of_it) if len(part.gpu)]
        tiles = {part.op.name: known[cell].tiles for part in rows if (cell := cell_key(part.op.name, dtype)) in known}
        if sum(len(part.gpu) for part in rows) >= LEAST_ROWS:
            models = _family(rows, dtype, gpus, tiles, DECAY[family])
            learned |= {cell_key(op, dtype): model for op, model in models.items()}
    return learned


def measured(run: OperatorRuns) -> Rows:
    """Return rows that are a single kernel (products: forward only), with their tiles."""
    op = OPS[OP_CODE[run.op]]
    if family_of(op) in PRODUCTS:
        run = run.take(np.flatnonzero(run.rows.ops.column("backward") == 0.0))
        tile = tiles_of_kernels(run.kernel, run.kernels)
    else:
        tile = tiles_of_grids(run.rows.ops.column("b") * run.rows.ops.column("h"), run.grid)
    launches = kernels_of(op, run.rows.ops, DTYPE_CODE[run.dtype])
    empty = Kernels(np.empty((4, 0)), op.work(run.rows.ops))
    return Rows(op, launches[0][1] if launches else empty, tile, run.rows.gpu, run.rows.latency_s)


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
    figures = log_figures_of(devices_of(gpus, rows.op, DTYPE_CODE[dtype]))
    new = Tiles.measured(rows.kernels.sizes, rows.tile, rows.gpu, gpus.ids, figures)
    return new if known is None else new.over(known)


def _examples(rows: Rows, tiles: Tiles, dtype: str, gpus: GpuTable) -> Examples:
    """Return the training rows of measured kernels, with measured tiles if known."""
    code = DTYPE_CODE[dtype]
    devices = devices_of(gpus, rows.op, code)
    guess = tiles_for(rows.op, rows.kernels, tiles, gpus, devices, rows.gpu)
    tile = np.where(np.isnan(rows.tile), guess, rows.tile)
    decomposed = decompose(rows.kernels, tile, devices.take(rows.gpu), rows.op, code)
    return Examples(decomposed.inputs, decomposed.waves, decomposed.ideal_s, rows.latency_s)


def evenly(gpu: Ints, usable: Bools) -> Ints:
    """Return at most MOST_ROWS usable rows, equally many per GPU if available, in order."""
    parts = [np.flatnonzero(usable & (gpu == code)) for code in np.unique(gpu)]
    draw, share = np.random.default_rng(0), MOST_ROWS // len(parts)
    chosen = [part if len(part) <= share else draw.choice(part, share, replace=False) for part in parts]
    return np.sort(np.concatenate(chosen))


_FAMILY = {op.name: family_of(op) for op in OPS}


class TileWave(CellPredictor):
    """NeuSight as a predictor of operators."""

    name = "tilewave"
    model = OperatorModel

    def fit_operators(self, runs: Sequence[OperatorRuns], gpus: GpuTable) -> Self:
        """Return the predictor with a network for every family and dtype of `runs`, shared by its operators there.

        Operators and dtypes that `runs` lacks stay as they were, and so do the tiles of GPUs that it lacks; the
        network of a cell is learned anew. Raises NotTrained if no family has LEAST_ROWS rows in a dtype.
        """
        learned = learn(runs, gpus, self.cells_)
        if not learned:
            raise NotTrained(
                f"'{self.name}' learns from {LEAST_ROWS} or more rows of bmm, linear, element-wise operators, softmax "
                "or layer_norm in one dtype; there are too few."
            )
        return type(self)({**self.cells_, **learned})

    def answer(self, cell: Cell, gpus: GpuTable) -> tuple[Floats, Ints] | None:
        """Return seconds and situations of a cell's queries; None: not learned."""
        if family_of(cell.op) is None:
            return _memory_bound(cell, gpus)
        learned = self._learned(cell)
        return None if learned is None else learned.answer(cell, gpus)

    def _learned(self, cell: Cell) -> OperatorModel | None:
        """The operator's own cell; an element-wise one that was never measured has any of its family's."""
        own: OperatorModel | None = self.cells_.get(cell.key)
        if own is not None or _FAMILY[cell.op.name] != ELEMENTWISE:
            return own
        alike = {cell_key(op, cell.dtype) for op, family in _FAMILY.items() if family == ELEMENTWISE}
        return next((model for key, model in self.cells_.items() if key in alike), None)

    @staticmethod
    def learned_cells(state: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Operators and dtypes that a state knows."""
        return [(one["op"], one["dtype"]) for one in state["cells"]]

    @staticmethod
    def layout(operators: Collection[str]) -> Layout:
        """Of a state that knows these operators."""
        axes = {"inputs of networks": INPUTS, "dimensions": SIZES, "figures that tiles go by": Devices._fields}
        families = {f"family of {name}": (_FAMILY[name] or "none",) for name in operators}
        return LAYOUT.joined(Layout(axes | families))

    def state(self) -> dict[str, Any]:
        """Networks once each, and the cells with their network's position."""
        networks = list({id(cell.network): cell.network for cell in self.cells_.values()}.values())
        position = {id(network): k for k, network in enumerate(networks)}
        return {
            "networks": [network.state() for network in networks],
            "cells": [
                {"op": op, "dtype": dtype, "network": position[id(cell.network)], **cell.state()}
                for (op, dtype), cell in ((key.split(" "), cell) for key, cell in self.cells_.items())
            ],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the object of a `state`."""
        networks = [Network.from_state(one) for one in state["networks"]]
        cells = state["cells"]
        return cls(
            {cell_key(one["op"], one["dtype"]): OperatorModel.of(networks[one["network"]], one) for one in cells}
        )


def _memory_bound(cell: Cell, gpus: GpuTable) -> tuple[Floats, Ints] | None:
    """The paper's rule for operators that it does not know, bytes / bandwidth; not for collectives and kernels."""
    if cell.op.link_bytes is not None or cell.op.name == "kernel":
        return None
    bandwidth = gpus.column("memory_bandwidth_bytes_per_s")[cell.gpu]
    return cell.work.bytes / bandwidth, np.full(len(cell.gpu), S_UNTRAINED)
