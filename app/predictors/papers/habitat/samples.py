"""`habitat`'s model of one operator and dtype: a bounded sample of its rows, and a perceptron if kernels vary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from app.predictors.flat.perceptron import FlatPerceptron
from app.predictors.nearest import nearest_of
from app.predictors.papers.habitat.wave_scaling import distance
from app.predictors.papers.known_gpus import FIGURES, KnownGpus, figures_of
from app.predictors.papers.queries import points
from app.predictors.shapes import check_shape
from app.tables.arrays import Bools, Floats, Ints
from app.tables.gpus import GpuTable
from app.tables.ops import OpTable

LAYERS, ROUNDS = (64, 64), 60
# Least number of GPUs from which a network generalises to another one.
LEAST_GPUS = 3
_OF_FIGURES = ("memory_bytes", "memory_bandwidth_bytes_per_s", "sm_count")
# Inputs of a network besides the shape.
NETWORK_FIGURES = (*_OF_FIGURES, "peak")
_NETWORK_ROWS = [FIGURES.index(name) for name in _OF_FIGURES]


def _gpu_features(figures: Floats, peak: Floats) -> Floats:
    logs: Floats = np.log(np.stack([*figures[_NETWORK_ROWS], peak], axis=1))
    return logs


@dataclass(frozen=True, eq=False)
class Samples:
    """One cell: n rows of k GPUs.

    names      columns of the operator that `point` holds
    peak       float64 [k], FLOP/s in the cell's number format
    gpu        int16 [n], position in `gpus`, ascending
    point      float32 [n, names], as `points`
    log_moved, log_latency  float32 [n], log of bytes and seconds
    network    log seconds from shape and GPU; None where kernels are alike
    """

    gpus: KnownGpus
    names: list[str]
    peak: Floats
    gpu: NDArray[np.int16]
    point: NDArray[np.float32]
    log_moved: NDArray[np.float32]
    log_latency: NDArray[np.float32]
    network: FlatPerceptron | None = None

    def joined(self, newer: Samples) -> Samples:
        """Return these rows with those of `newer` added (which wins for common GPUs), without a network."""
        gpus, keep = self.gpus.joined(newer.gpus)
        position = np.full(len(self.gpus), -1)
        position[keep] = np.arange(len(keep))
        rows = np.flatnonzero(position[self.gpu] >= 0)
        return Samples(
            gpus,
            self.names,
            np.concatenate([self.peak[keep], newer.peak]),
            np.concatenate([position[self.gpu[rows]], newer.gpu + len(keep)]).astype(np.int16),
            np.concatenate([self.point[rows], newer.point]),
            np.concatenate([self.log_moved[rows], newer.log_moved]),
            np.concatenate([self.log_latency[rows], newer.log_latency]),
        )

    def with_network(self) -> Samples:
        """Return the sample with a perceptron fitted to all rows."""
        features = np.concatenate([self.point.astype(np.float64), self._gpu_features[self.gpu]], axis=1)
        usable = np.isfinite(features).all(axis=1)
        if not usable.any():
            return self
        target = self.log_latency[usable].astype(np.float64)
        network = FlatPerceptron.fitted(features[usable], target, layers=LAYERS, rounds=ROUNDS)
        rows = (self.gpu, self.point, self.log_moved, self.log_latency)
        return Samples(self.gpus, self.names, self.peak, *rows, network)

    def learned_s(self, ops: OpTable, gpus: GpuTable, j: Ints, peak: Floats) -> Floats:
        """The perceptron's seconds of rows `ops` on GPU rows `j` with these peaks, [m]; NaN where no network knows.

        A GPU beyond those learned from counts as at their edge: from a handful of GPUs the network knows no slope.
        """
        if self.network is None:
            return np.full(len(j), np.nan)
        known = self._gpu_features
        asked = np.clip(_gpu_features(figures_of(gpus, j), peak), np.nanmin(known, axis=0), np.nanmax(known, axis=0))
        seconds = np.exp(self.network.predict(np.concatenate([points(ops, self.names), asked], axis=1)))
        taught = np.isfinite(known).all(axis=1).sum()
        supported = (self.gpus.find(gpus, j) >= 0) | (taught >= LEAST_GPUS)
        return np.where(supported, seconds, np.nan)

    def origins(self, gpus: GpuTable, j: Ints) -> Ints:
        """Return the most similar other GPU for GPU row `j[q]`, int [m]; -1 if there is none."""
        apart = distance(self.gpus.figures, figures_of(gpus, j))
        apart[np.arange(len(self.gpus))[:, None] == self.gpus.find(gpus, j)] = np.inf
        return np.where(np.isfinite(apart).any(axis=0), apart.argmin(axis=0), -1)

    def nearest_s(self, origin: Ints, ops: OpTable, moved: Floats) -> Floats:
        """Return the seconds on GPU `origin[q]` of the measured operator nearest to row q, scaled by bytes, [m]."""
        first, past = self._span[np.maximum(origin, 0)], self._span[origin + 1]
        row = np.empty(len(origin), dtype=np.intp)
        nearest_of(self.point, points(ops, self.names).astype(np.float32), first, past, row)
        seconds = np.exp(self.log_latency[row] - self.log_moved[row]) * moved
        return np.where(origin >= 0, seconds, np.nan)

    def outside(self, ops: OpTable) -> Bools:
        """Return True for rows with a dimension outside the training range, bool [m]."""
        asked = points(ops, self.names)
        low, high = self._range
        beyond: Bools = np.logical_or.reduce((asked < low) | (asked > high), axis=1)
        return beyond

    def state(self) -> dict[str, Any]:
        """Return plain containers and arrays."""
        return {
            "gpus": self.gpus.state(),
            "names": self.names,
            "peak": self.peak,
            "gpu": self.gpu,
            "point": self.point,
            "log_moved": self.log_moved,
            "log_latency": self.log_latency,
            "network": None if self.network is None else self.network.state(),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the object of a `state`."""
        parts = {name: state[name] for name in ("names", "peak", "gpu", "point", "log_moved", "log_latency")}
        check_shape("points of a sample", parts["point"], len(parts["gpu"]), len(parts["names"]))
        network = None if state["network"] is None else FlatPerceptron.from_state(state["network"])
        return cls(KnownGpus.from_state(state["gpus"]), network=network, **parts)

    @cached_property
    def _span(self) -> Ints:
        """Where each GPU's rows start, int [k + 1]: rows are in the order of their GPUs."""
        return np.searchsorted(self.gpu, np.arange(len(self.gpus) + 1))

    @cached_property
    def _range(self) -> tuple[Floats, Floats]:
        # Half a float32 step of room: a shape that was learned from is inside.
        return self.point.min(axis=0) - 1e-5, self.point.max(axis=0) + 1e-5

    @cached_property
    def _gpu_features(self) -> Floats:
        return _gpu_features(self.gpus.figures, self.peak)
