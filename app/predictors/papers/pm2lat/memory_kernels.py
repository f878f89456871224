"""Memory-bound kernels of one operator and dtype on one GPU: linear in bytes and instructions.

PM2Lat's utility layers (section III.C): latency is regressed on the memory accessed and the instructions executed.
Their counts come from a profiler; ours from the operator's equations: bytes through the L2, those that cannot stay
there, arithmetic instructions, and rows (what each row of a reduction costs whatever its length). Coefficients are at
least zero, residuals relative. Kernels are told apart by name and chosen by shape. No time is under the launch's floor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from app.predictors.papers.pm2lat.kernel_chooser import KernelChooser
from app.predictors.papers.queries import LEAST_ROWS
from app.tables.arrays import Floats, Ints

# The floor is about the shortest time; rows within this factor of it say nothing of bytes.
FLOOR_QUANTILE, FLOOR_FACTOR = 0.01, 1.1
# Rounds of reweighting towards the least absolute error, and the residual under which rows weigh alike.
ROUNDS, LEAST_RESIDUAL = 6, 0.01
# Of a row, by which a line is fitted.
METRICS = ("bytes", "bytes beyond L2", "instructions", "rows")


@dataclass(frozen=True, slots=True, eq=False)
class Counts:
    """n rows as memory-bound kernels see them.

    metrics  float64 [4, n], bytes, bytes beyond the L2, arithmetic instructions, rows
    shape    float64 [n, dimensions], log2 of the dimensions, by which kernels are chosen
    """

    metrics: Floats
    shape: Floats

    def take(self, rows: Ints) -> Counts:
        """The rows given."""
        return Counts(self.metrics[:, rows], self.shape[rows])


@dataclass(frozen=True, slots=True, eq=False)
class MemoryKernels:
    """Kernels of one cell on one GPU.

    overhead_s    seconds that no launch is under
    l2_bytes      of the GPU
    coefficients  float64 [kernels, 5], seconds, then seconds per unit of each metric
    """

    overhead_s: float
    l2_bytes: float
    coefficients: Floats
    chooser: KernelChooser

    @classmethod
    def fitted(cls, counts: Counts, latency_s: Floats, kernel: Ints, l2_bytes: float) -> Self | None:
        """From n rows and the codes of their kernels; None where no kernel has rows enough."""
        floor_s = float(np.quantile(latency_s, FLOOR_QUANTILE))
        members = [rows for code in np.unique(kernel) if len(rows := np.flatnonzero(kernel == code)) >= LEAST_ROWS]
        if not members:
            return None
        lines = [fit_line(counts.metrics[:, rows], latency_s[rows], floor_s) for rows in members]
        label = np.repeat(np.arange(len(members)), [len(rows) for rows in members])
        chooser = KernelChooser.fitted(counts.shape[np.concatenate(members)], label)
        return cls(floor_s, l2_bytes, np.array(lines), chooser)

    def predict(self, counts: Counts) -> Floats:
        """Seconds of n rows, the launch included."""
        line = self.coefficients[self.chooser.choose(counts.shape)].T
        seconds: Floats = np.maximum(line[0] + (line[1:] * counts.metrics).sum(axis=0), self.overhead_s)
        return seconds

    def state(self) -> dict[str, Any]:
        """As a plain container of arrays."""
        return {
            "overhead_s": self.overhead_s,
            "l2_bytes": self.l2_bytes,
            "coefficients": self.coefficients,
            "chooser": self.chooser.state(),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """The inverse of `state`."""
        chooser = KernelChooser.from_state(state["chooser"])
        return cls(state["overhead_s"], state["l2_bytes"], state["coefficients"], chooser)


def fit_line(metrics: Floats, latency_s: Floats, floor_s: float) -> Floats:
    """Seconds, and seconds per unit of each of `metrics` [4, n], all at least 0, float64 [5]."""
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
