"""`li`: the linear baseline of Li et al. (MICRO 2023), as NeuSight's paper describes it (section 2, figure 2b).

Of each operator on each GPU, latency = overhead + FLOPs / rate. For a GPU that was not measured, rate = c + d x memory
bandwidth, regressed over the GPUs that were. Cache, tiles and waves play no part: it is a baseline.

What the descriptions leave open: both coefficients are at least zero and the residuals relative, since plain least
squares follow the longest rows alone (212 % against 29 % on held-out FP32 bmm); the overhead of an unmeasured GPU is
the median of the others'. Operators without FLOPs (collectives, copies) are not supported.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np

from app.errors import NotTrained
from app.ops.kinds import kinds_of, work_of
from app.predictors.base import Capabilities
from app.predictors.papers.known_gpus import FIGURES, LAYOUT, KnownGpus, figures_of
from app.predictors.papers.queries import Cell, cell_key, estimate, learned_cells, of_each_gpu
from app.predictors.schema import Layout
from app.tables.arrays import Floats, Ints
from app.tables.gpus import GpuTable
from app.tables.measurements import Evidence
from app.tables.operator_runs import OperatorRuns
from app.tables.ops import OpTable
from app.tables.predictions import Estimate

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

    def predict(self, flops: Floats, gpus: GpuTable, j: Ints) -> Floats:
        """Seconds of rows of `flops` on GPU rows `j`; NaN where there are no FLOPs, or no rate to expect."""
        known = self.gpus.find(gpus, j)
        slope, constant = rate_on_bandwidth(self.gpus.figures[_BANDWIDTH], self.rate)
        rate = np.where(known >= 0, self.rate[known], constant + slope * figures_of(gpus, j)[_BANDWIDTH])
        overhead_s = np.where(known >= 0, self.overhead_s[known], np.median(self.overhead_s))
        usable = (flops > 0) & (rate > 0)
        return np.where(usable, overhead_s + flops / np.where(usable, rate, 1.0), np.nan)

    def joined(self, newer: Lines) -> Lines:
        """These lines, and the newer ones instead where both know a GPU."""
        gpus, keep = self.gpus.joined(newer.gpus)
        return Lines(
            gpus,
            np.concatenate([self.overhead_s[keep], newer.overhead_s]),
            np.concatenate([self.rate[keep], newer.rate]),
            min(self.low, newer.low),
            max(self.high, newer.high),
        )


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


@dataclass(frozen=True, eq=False)
class Li:
    """Latency linear in FLOPs per operator and GPU; the rate linear in bandwidth across GPUs."""

    name: ClassVar[str] = "li"
    can: ClassVar[Capabilities] = Capabilities(("operators",), ("operators",), needs_training=True)

    cells_: Mapping[str, Lines] = field(default_factory=dict)

    def fit_operators(self, runs: Sequence[OperatorRuns], gpus: GpuTable) -> Self:
        """Itself with a line for every GPU of every cell in `runs`; NotTrained where not one can be drawn."""
        learned = {cell_key(run.op, run.dtype): lines for run in runs if (lines := _lines(run, gpus)) is not None}
        if not learned:
            raise NotTrained(
                f"'{self.name}' learns from rows of one operator with FLOPs on one GPU; there are too few."
            )
        known = {key: self.cells_[key].joined(new) if key in self.cells_ else new for key, new in learned.items()}
        return type(self)({**self.cells_, **known})

    def predict(self, ops: OpTable, gpus: GpuTable, i: Ints, j: Ints, *, evidence: Evidence) -> Estimate:
        """Return the estimates of operator row `i[q]` on GPU row `j[q]`; evidence is not used."""

        def answer(cell: Cell) -> tuple[Floats, Ints] | None:
            lines = self.cells_.get(cell.key)
            if lines is None:
                return None
            flops = cell.work.flops
            outside = (flops < lines.low) | (flops > lines.high)
            return lines.predict(flops, gpus, cell.gpu), lines.gpus.situations(gpus, cell.gpu, outside)

        return estimate(ops, gpus, i, j, answer)

    learned_cells = staticmethod(learned_cells)

    @staticmethod
    def layout(operators: Collection[str]) -> Layout:
        """Of a state that knows these operators."""
        return LAYOUT

    def state(self) -> dict[str, Any]:
        """Per cell its GPUs, overheads and rates."""
        return {
            key: {
                "gpus": lines.gpus.state(),
                "overhead_s": lines.overhead_s,
                "rate": lines.rate,
                "range": [lines.low, lines.high],
            }
            for key, lines in self.cells_.items()
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the object of a `state`."""
        return cls(
            {
                key: Lines(KnownGpus.from_state(of["gpus"]), of["overhead_s"], of["rate"], *of["range"])
                for key, of in state.items()
            }
        )


def _lines(run: OperatorRuns, gpus: GpuTable) -> Lines | None:
    """The lines of one cell; None where no GPU has rows enough."""
    flops = work_of(run.rows.ops, kinds_of(run.rows.ops)).flops
    found = []
    for gpu, rows in of_each_gpu(run):
        if not (flops[rows] > 0).all():
            continue
        overhead_s, slope = fit_line(flops[rows], run.rows.latency_s[rows])
        if slope > 0:
            found.append((gpu, overhead_s, 1.0 / slope))
    if not found:
        return None
    on, overhead, rate = zip(*found, strict=True)
    return Lines(KnownGpus.of(gpus, on), np.array(overhead), np.array(rate), float(flops.min()), float(flops.max()))
