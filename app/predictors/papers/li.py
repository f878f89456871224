"""`li`: the linear baseline of Li et al. (MICRO 2023), as NeuSight's paper describes it (section 2, figure 2b).

Of each operator on each GPU, latency = overhead + FLOPs / rate. For a GPU that was not measured, rate = c + d x memory
bandwidth, regressed over the GPUs that were. Cache, tiles and waves play no part: it is a baseline.

What the descriptions leave open: both coefficients are at least zero and the residuals relative, since plain least
squares follow the longest rows alone (212 % against 29 % on held-out FP32 bmm); the overhead of an unmeasured GPU is
the median of the others'. Operators without FLOPs (collectives, copies) are not supported.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from app.ops import kinds_of, work_of
from app.predictors.papers.base import FIGURES, LAYOUT, Cell, CellPredictor, KnownGpus, figures_of, of_each_gpu
from app.predictors.schema import Layout
from app.tables.arrays import Floats, Ints
from app.tables.gpus import GpuTable
from app.tables.measurements import OperatorRuns

_BANDWIDTH = FIGURES.index("memory_bandwidth_bytes_per_s")


@dataclass(frozen=True, slots=True, eq=False)
class Lines:
    """One cell: a line per GPU.

    overhead_s, rate  float64 [k], seconds and FLOP/s
    low, high         range of FLOPs learned from
    """

    gpus: KnownGpus
    overhead_s: Floats
    rate: Floats
    low: float
    high: float

    @classmethod
    def fitted(cls, run: OperatorRuns, gpus: GpuTable) -> Self | None:
        """Return the lines of one cell; None if no GPU has enough rows with FLOPs."""
        flops = work_of(run.rows.ops, kinds_of(run.rows.ops)).flops
        lines = []
        for gpu, rows in of_each_gpu(run):
            if not (flops[rows] > 0).all():
                continue
            overhead_s, slope = fit_line(flops[rows], run.rows.latency_s[rows])
            if slope > 0:
                lines.append((gpu, overhead_s, 1.0 / slope))
        if not lines:
            return None
        on, overhead, rate = zip(*lines, strict=True)
        return cls(KnownGpus.of(gpus, on), np.array(overhead), np.array(rate), float(flops.min()), float(flops.max()))

    def answer(self, cell: Cell, gpus: GpuTable) -> tuple[Floats, Ints]:
        """Return seconds and situations; NaN if there are no FLOPs, or no rate to expect."""
        flops, j = cell.work.flops, cell.gpu
        known = self.gpus.find(gpus, j)
        slope, constant = rate_on_bandwidth(self.gpus.figures[_BANDWIDTH], self.rate)
        rate = np.where(known >= 0, self.rate[known], constant + slope * figures_of(gpus, j)[_BANDWIDTH])
        overhead_s = np.where(known >= 0, self.overhead_s[known], np.median(self.overhead_s))
        usable = (flops > 0) & (rate > 0)
        seconds = np.where(usable, overhead_s + flops / np.where(usable, rate, 1.0), np.nan)
        return seconds, self.gpus.situations(gpus, j, (flops < self.low) | (flops > self.high))

    def joined(self, newer: Lines) -> Self:
        """Return these lines, and the newer ones instead where both know a GPU."""
        gpus, keep = self.gpus.joined(newer.gpus)
        overhead_s = np.concatenate([self.overhead_s[keep], newer.overhead_s])
        rate = np.concatenate([self.rate[keep], newer.rate])
        return type(self)(gpus, overhead_s, rate, min(self.low, newer.low), max(self.high, newer.high))

    def state(self) -> dict[str, Any]:
        """Return GPUs, overheads, rates and range."""
        gpus, span = self.gpus.state(), [self.low, self.high]
        return {"gpus": gpus, "overhead_s": self.overhead_s, "rate": self.rate, "range": span}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the object of a `state`."""
        return cls(KnownGpus.from_state(state["gpus"]), state["overhead_s"], state["rate"], *state["range"])


def rate_on_bandwidth(bandwidth: Floats, rate: Floats) -> tuple[float, float]:
    """Least squares of rate on bandwidth over GPUs, [k] each: slope and constant; NaN from a single bandwidth."""
    apart = bandwidth - bandwidth.mean()
    if not (apart**2).sum() > 0:
        return np.nan, np.nan
    slope = float((apart * (rate - rate.mean())).sum() / (apart**2).sum())
    return slope, float(rate.mean() - slope * bandwidth.mean())


def fit_line(flops: Floats, latency_s: Floats) -> tuple[float, float]:
    """Overhead in seconds and seconds per FLOP, both at least 0, of the least squared relative error over rows [n]."""
    from scipy.optimize import nnls  # noqa: PLC0415  (serving never fits)

    scale = flops.mean()
    (overhead_s, slope), _ = nnls(np.stack([1.0 / latency_s, flops / scale / latency_s], axis=1), np.ones(len(flops)))
    return float(overhead_s), float(slope / scale)


class Li(CellPredictor):
    """Latency linear in FLOPs per operator and GPU; the rate linear in bandwidth across GPUs."""

    name = "li"
    model = Lines
    learns_from = "rows of one operator with FLOPs on one GPU"

    @staticmethod
    def layout(operators: Collection[str]) -> Layout:
        """Return the layout of a state: FLOPs have no shape."""
        return LAYOUT
