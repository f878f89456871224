"""`tilewave`'s model of one operator in one dtype."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from app.bands.groups import S_SEEN
from app.ops.base import Op
from app.ops.tiles import CANDIDATES
from app.predictors.papers.known_gpus import KnownGpus
from app.predictors.papers.neusight.equations import (
    PRODUCTS,
    Decomposed,
    Devices,
    Kernels,
    decompose,
    devices_of,
    family_of,
    kernels_of,
)
from app.predictors.papers.neusight.measured_tiles import Tiles
from app.predictors.papers.neusight.network import Network, utilisation
from app.predictors.papers.queries import Cell
from app.tables.arrays import Floats, Ints
from app.tables.gpus import GpuTable
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
    def from_state(cls, network: Network, state: Mapping[str, Any]) -> Self:
        """Return the object of a `state`."""
        return cls(network, Tiles.from_state(state["tiles"]), KnownGpus.from_state(state["gpus"]), state["span"])


def latency_s(decomposed: Decomposed, network: Network) -> Floats:
    """Return latency at full utilisation over the utilisation (equations 4 to 8), seconds [n]."""
    alpha, beta = network.predict(decomposed.inputs)
    return decomposed.ideal_s / utilisation(alpha, beta, decomposed.waves)


def tiles_for(op: Op, kernels: Kernels, tiles: Tiles, gpus: GpuTable, devices: Devices, gpu: Ints) -> Floats:
    """Return tiles of kernels on GPU rows `gpu`, float64 [2, n]: from measured ones, else common library tiles."""
    if tiles.gpus:
        rows, back = np.unique(gpu, return_inverse=True)
        whose = tiles.nearest_gpus([gpus.ids[k] for k in rows], figures_of(devices.take(rows)))
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


def figures_of(devices: Devices) -> Floats:
    """Return natural logs of the figures by which GPUs are compared, float64 [5, n]; unknown ones are 0."""
    logs: Floats = np.nan_to_num(np.log(np.stack(devices)))
    return logs
