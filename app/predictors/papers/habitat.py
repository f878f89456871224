"""`habitat`: the baseline of Yu et al. (USENIX ATC 2021), as its paper and NeuSight's section 2 describe it.

Kernel-alike operators, the same kernel on every GPU: the time measured on another GPU, by wave scaling (equation 2),

T_d = T_o (D_o / D_d)^g (W_o C_o / (W_d C_d))^(1 - g), with D the memory bandwidth, W the blocks of a wave and C the
clock of the origin o and the destination d; equation 1, which rounds waves up, becomes this for many waves. g says
how far memory bounds the kernel (their section 4.2): with x its FLOPs per byte and R the destination's peak over its
bandwidth, g = 1 - x / 2R below the ridge R and R / 2x above it. Kernel-varying operators (VARYING): a perceptron per
operator over its dimensions and the GPU's memory, bandwidth, SMs and peak.

What the origin is: a request's own evidence of this operator, else the most similar GPU learned from, other than the
requested one, and there the nearest measured operator by log dimensions, its time scaled by bytes. Habitat has that
very operator measured; a service has not, so each cell keeps a sample of its rows. Their networks have eight layers of
1,024; these two of 64, on log time. Collectives, and cells that one GPU alone was measured in, are not supported.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from app.ops import OP_CODE, OPS, kinds_of, work_of
from app.predictors.flat import FlatPerceptron, nearest_of
from app.predictors.papers.base import (
    FIGURES,
    LAYOUT,
    Cell,
    CellPredictor,
    KnownGpus,
    drawn,
    figures_of,
    of_each_gpu,
    points,
    shape_layout,
    shape_names,
)
from app.predictors.roofline import peaks
from app.predictors.schema import Layout, check_shape
from app.tables.arrays import Bools, Floats, Ints
from app.tables.gpus import COLUMN_INDEX, GpuTable
from app.tables.measurements import Evidence, OperatorRuns
from app.tables.ops import DTYPE_CODE, OpTable
from app.tables.predictions import Estimate

_SMS, _CLOCK, _FIGURE_BANDWIDTH, _THREADS = (
    FIGURES.index(name) for name in ("sm_count", "boost_clock_hz", "memory_bandwidth_bytes_per_s", "max_threads_per_sm")
)


def memory_share(intensity: Floats, ridge: Floats) -> Floats:
    """G of rows of `intensity` FLOPs per byte on GPUs whose peak / bandwidth is `ridge`, [n] each."""
    below = intensity < ridge
    high = np.where(below, ridge, intensity)
    share: Floats = np.where(below, 1.0 - 0.5 * intensity / ridge, 0.5 * ridge / np.where(high > 0, high, 1.0))
    return share


def scaled(origin: Floats, destination: Floats, share: Floats) -> Floats:
    """T_d / T_o, [n], of GPUs by their figures (rows of FIGURES, [figures, n]).

    Blocks of a wave are taken as SMs x resident threads, since a kernel's occupancy is not known.
    """
    waves = origin[_SMS] * origin[_THREADS] * origin[_CLOCK]
    waves = waves / (destination[_SMS] * destination[_THREADS] * destination[_CLOCK])
    ratio: Floats = (origin[_FIGURE_BANDWIDTH] / destination[_FIGURE_BANDWIDTH]) ** share * waves ** (1.0 - share)
    return ratio


def distance(origins: Floats, destination: Floats) -> Floats:
    """How far GPUs are apart in log bandwidth and log SMs x clock, float64 [k, n], of figures [.., k] and [.., n]."""
    apart = np.log(origins[:, :, None] / destination[:, None, :])
    far: Floats = np.abs(apart[_FIGURE_BANDWIDTH]) + np.abs(apart[_SMS] + apart[_CLOCK])
    return far


# Operators whose library picks among kernels (Habitat, table 1).
VARYING = ("linear", "bmm", "conv2d", "recurrent")
# Rows kept per cell and GPU, of kernel-alike and of kernel-varying operators.
MOST_ROWS = (512, 2048)
_BANDWIDTH = COLUMN_INDEX["memory_bandwidth_bytes_per_s"]
LAYERS, ROUNDS = (64, 64), 60
# Least number of GPUs from which a network generalises to another one.
LEAST_GPUS = 3
_OF_FIGURES = ("memory_bytes", "memory_bandwidth_bytes_per_s", "sm_count")
# Inputs of a network besides the shape.
NETWORK_FIGURES = (*_OF_FIGURES, "peak")
_STORED = ("names", "peak", "gpu", "point", "log_moved", "log_latency")
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

    @classmethod
    def fitted(cls, run: OperatorRuns, gpus: GpuTable) -> Self | None:
        """Return at most MOST_ROWS rows of every GPU, drawn with seed 0; None if no GPU has enough rows."""
        op = OPS[OP_CODE[run.op]]
        if op.link_bytes is not None:
            return None
        parts = {gpu: drawn(rows, MOST_ROWS[run.op in VARYING]) for gpu, rows in of_each_gpu(run)}
        if not parts:
            return None
        rows = run.rows.take(np.concatenate(list(parts.values())))
        names = shape_names(op)
        return cls(
            KnownGpus.of(gpus, list(parts)),
            names,
            peaks(gpus)[DTYPE_CODE[run.dtype], list(parts)],
            np.repeat(np.arange(len(parts)), [len(part) for part in parts.values()]).astype(np.int16),
            points(rows.ops, names).astype(np.float32),
            np.log(op.work(rows.ops).bytes).astype(np.float32),
            np.log(rows.latency_s).astype(np.float32),
        )

    def joined(self, newer: Samples) -> Self:
        """Return these rows with those of `newer` added (which wins for common GPUs), without a network."""
        gpus, keep = self.gpus.joined(newer.gpus)
        position = np.full(len(self.gpus), -1)
        position[keep] = np.arange(len(keep))
        rows = np.flatnonzero(position[self.gpu] >= 0)
        return type(self)(
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
        return replace(self, network=network)

    def learned_s(self, ops: OpTable, gpus: GpuTable, j: Ints, peak: Floats) -> Floats:
        """The perceptron's seconds of rows `ops` on GPU rows `j` with these peaks, [m]; NaN where no network knows.

        A GPU beyond those learned from counts as at their edge: from a handful of GPUs the network knows no slope.
        """
        if self.network is None:
            return np.full(len(j), np.nan)
        known = self._gpu_features
        queried = np.clip(_gpu_features(figures_of(gpus, j), peak), np.nanmin(known, axis=0), np.nanmax(known, axis=0))
        seconds = np.exp(self.network.predict(np.concatenate([points(ops, self.names), queried], axis=1)))
        complete = np.isfinite(known).all(axis=1).sum()
        supported = (self.gpus.find(gpus, j) >= 0) | (complete >= LEAST_GPUS)
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

    def answer(self, cell: Cell, gpus: GpuTable) -> tuple[Floats, Ints]:
        """Return seconds and situations, of which a shape beyond those learned from and backward are outside."""
        shape, (low, high) = points(cell.ops, self.names), self._range
        outside: Bools = np.logical_or.reduce((shape < low) | (shape > high), axis=1)
        outside |= cell.ops.column("backward") > 0
        return self._seconds(cell, gpus), self.gpus.situations(gpus, cell.gpu, outside)

    def _seconds(self, cell: Cell, gpus: GpuTable) -> Floats:
        peak = peaks(gpus)[DTYPE_CODE[cell.dtype], cell.gpu]
        if cell.op.name in VARYING:
            return (1.0 + cell.ops.column("backward")) * self.learned_s(cell.ops, gpus, cell.gpu, peak)
        work, origin = cell.work, self.origins(gpus, cell.gpu)
        share = memory_share(work.flops / work.bytes, peak / gpus.values[_BANDWIDTH, cell.gpu])
        ratio = scaled(self.gpus.figures[:, origin], figures_of(gpus, cell.gpu), share)
        return self.nearest_s(origin, cell.ops, work.bytes) * ratio

    def state(self) -> dict[str, Any]:
        """Return plain containers and arrays."""
        network = None if self.network is None else self.network.state()
        arrays = {name: getattr(self, name) for name in _STORED}
        return {"gpus": self.gpus.state(), **arrays, "network": network}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the object of a `state`."""
        parts = {name: state[name] for name in _STORED}
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


class Habitat(CellPredictor):
    """Wave scaling, and a perceptron for operators whose kernels differ between GPUs."""

    name = "habitat"
    model = Samples

    def fit_operators(self, runs: Sequence[OperatorRuns], gpus: GpuTable) -> Self:
        """Return the predictor with a sample of every GPU of every cell in `runs`, and with networks of them."""
        learned = super().fit_operators(runs, gpus).cells_
        new = {key for key, samples in learned.items() if samples is not self.cells_.get(key)}
        varying = {key for key in new if key.split(" ")[0] in VARYING}
        return type(self)({key: one.with_network() if key in varying else one for key, one in learned.items()})

    def predict(self, ops: OpTable, gpus: GpuTable, i: Ints, j: Ints, *, evidence: Evidence) -> Estimate:
        """Return the estimates of operator row `i[q]` on GPU row `j[q]`.

        Evidence that is the query's operator on another GPU is scaled; of several pieces the geometric mean counts.
        """
        learned = super().predict(ops, gpus, i, j, evidence=evidence)
        return with_evidence(learned, ops, gpus, i, j, evidence)

    @staticmethod
    def layout(operators: Collection[str]) -> Layout:
        """Return the layout of a state that knows these operators."""
        return LAYOUT.joined(shape_layout(operators)).joined(Layout({"GPU's inputs of networks": NETWORK_FIGURES}))


def with_evidence(learned: Estimate, ops: OpTable, gpus: GpuTable, i: Ints, j: Ints, evidence: Evidence) -> Estimate:
    """`learned`, and wave scaling instead where the evidence has the query's own operator on another GPU."""
    rows, query = evidence.rows, evidence.query
    if not len(query) or rows.ops.fields != ops.fields:
        return learned
    row = i[query]
    same = np.isclose(rows.ops.dims, ops.dims[:, row], rtol=0.0, equal_nan=True).all(axis=0)
    same &= (rows.ops.kind == ops.kind[row]) & (rows.ops.dtype == ops.dtype[row]) & (rows.gpu != j[query])
    rows, query = rows.take(np.flatnonzero(same)), query[same]
    work, target = work_of(rows.ops, kinds_of(rows.ops)), j[query]
    ridge = peaks(gpus)[rows.ops.dtype, target] / gpus.values[_BANDWIDTH, target]
    ratio = scaled(figures_of(gpus, rows.gpu), figures_of(gpus, target), memory_share(work.flops / work.bytes, ridge))
    total = np.bincount(query, np.log(rows.latency_s * ratio), len(i))
    count = np.bincount(query, minlength=len(i))
    latency = np.where(count > 0, np.exp(total / np.maximum(count, 1)), learned.latency_s)
    return replace(learned, latency_s=latency)
