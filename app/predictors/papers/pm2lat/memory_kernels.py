"""Memory-bound kernels of one operator and dtype on one GPU: linear in bytes and instructions.

For PM2Lat's utility layers (section III.C), latency is regressed on memory traffic and executed instructions. The
paper counts them with a profiler; here they follow from the operator's equations: bytes through the L2, bytes that do
not fit into it, arithmetic instructions, and rows (the fixed cost of each row of a reduction). Coefficients are
non-negative, residuals relative. Kernels are identified by name and chosen by shape. Times are at least the launch
floor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from app.predictors.papers.pm2lat.kernel_chooser import KernelChooser
from app.predictors.papers.queries import LEAST_ROWS
from app.tables.arrays import Floats, Ints

# Quantile of times taken as the launch floor; rows within the factor of it are not used for the slope.
FLOOR_QUANTILE, FLOOR_FACTOR = 0.01, 1.1
# Rounds of reweighting towards the least absolute error, and the residual below which weights are equal.
ROUNDS, LEAST_RESIDUAL = 6, 0.01
# Of a row, by which a line is fitted.
METRICS = ("bytes", "bytes beyond L2", "instructions", "rows")


@dataclass(frozen=True, slots=True, eq=False)
class Counts:
    """Metrics of n rows for memory-bound kernels.

    metrics  float64 [4, n], bytes, bytes beyond the L2, arithmetic instructions, rows
    shape    float64 [n, dimensions], log2 of the dimensions, by which kernels are chosen
    """

    metrics: Floats
    shape: Floats

    def take(self, rows: Ints) -> Counts:
        """Return the given rows."""
        return Counts(self.metrics[:, rows], self.shape[rows])


@dataclass(frozen=True, slots=True, eq=False)
class MemoryKernels:
    """Kernels of one cell on one GPU.

    overhead_s    launch floor, seconds
    l2_bytes      of the GPU
    coefficients  float64 [kernels, 5], seconds, then seconds per unit of each metric
    """

    overhead_s: float
    l2_bytes: float
    coefficients: Floats
    chooser: KernelChooser

    @classmethod
    def fitted(cls, counts: Counts, latency_s: Floats, kernel: Ints, l2_bytes: float) -> Self | None:
        """Return kernels fitted to n rows and their kernel codes; None if no kernel has enough rows."""
        floor_s = float(np.quantile(latency_s, FLOOR_QUANTILE))
        members = [rows for code in np.unique(kernel) if len(rows := np.flatnonzero(kernel == code)) >= LEAST_ROWS]
        if not members:
            return None
        lines = [fit_line(counts.metrics[:, rows], latency_s[rows], floor_s) for rows in members]
        label = np.repeat(np.arange(len(members)), [len(rows) for rows in members])
        chooser = KernelChooser.fitted(counts.shape[np.concatenate(members)], label)
        return cls(floor_s, l2_bytes, np.array(lines), chooser)

    def predict(self, counts: Counts) -> Floats:
        """Return the seconds of n rows, including the launch."""
        line = self.coefficients[self.chooser.choose(counts.shape)].T
        seconds: Floats = np.maximum(line[0] + (line[1:] * counts.metrics).sum(axis=0), self.overhead_s)
        return seconds

    def state(self) -> dict[str, Any]:
        """Return a plain container of arrays."""
        return {
            "overhead_s": self.overhead_s,
            "l2_bytes": self.l2_bytes,
            "coefficients": self.coefficients,
            "chooser": self.chooser.state(),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the object of a `state`."""
        chooser = KernelChooser.from_state(state["chooser"])
        return cls(state["overhead_s"], state["l2_bytes"], state["coefficients"], chooser)


def fit_line(metrics: Floats, latency_s: Floats, floor_s: float) -> Floats:
    """Return seconds, and seconds per unit of each of `metrics` [4, n], non-negative, float64 [5]."""
    from scipy.optimize import nnls  # noqa: PLC0415  (serving never fits)

    clear = latency_s > FLOOR_FACTOR * floor_s
    if clear.sum() < LEAST_ROWS:
        clear = np.ones(len(latency_s), dtype=bool)
    columns = np.concatenate([np.ones((1, len(latency_s))), metrics])[:, clear]
    scale = np.maximum(columns.max(axis=1), 1e-300)
    scaled, time = (columns / scale[:, None]).T, latency_s[clear]
    weight, line = 1.0 / time, np.zeros(len(scale))
    for _ in range(ROUNDS):
        line = nnls(scaled * weight[:, None], time * weight)[0]
        weight = 1.0 / time / np.sqrt(np.maximum(np.abs(scaled @ line / time - 1.0), LEAST_RESIDUAL))
    found: Floats = line / scale
    return found
