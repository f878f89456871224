"""`habitat`: the baseline of Yu et al. (USENIX ATC 2021), as its paper and NeuSight's section 2 describe it.

Kernel-alike operators, the same kernel on every GPU: the time measured on another GPU, by wave scaling
(papers.habitat.wave_scaling). Kernel-varying ones (VARYING): a perceptron per operator over its dimensions and
the GPU's memory, bandwidth, SMs and peak.

What the origin is: a request's own evidence of this operator, else the most similar GPU learned from, other than the
asked one, and there the nearest measured operator by log dimensions, its time scaled by bytes. Habitat has that very
operator measured; a service has not, so each cell keeps a sample of its rows. Their networks have eight layers of
1,024; these two of 64, on log time. Collectives, and cells that one GPU alone was measured in, are not supported.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np

from app.errors import NotTrained
from app.ops import OP_CODE, OPS
from app.ops.kinds import kinds_of, work_of
from app.predictors.base import Capabilities
from app.predictors.papers.habitat.samples import NETWORK_FIGURES, Samples
from app.predictors.papers.habitat.wave_scaling import memory_share, scaled
from app.predictors.papers.known_gpus import LAYOUT, KnownGpus, figures_of
from app.predictors.papers.queries import (
    Cell,
    cell_key,
    drawn,
    estimate,
    learned_cells,
    of_each_gpu,
    points,
    shape_layout,
    shape_names,
)
from app.predictors.roofline import peaks
from app.predictors.schema import Layout
from app.tables.arrays import Floats, Ints
from app.tables.gpus import COLUMN_INDEX, GpuTable
from app.tables.measurements import Evidence
from app.tables.operator_runs import OperatorRuns
from app.tables.ops import DTYPE_CODE, OpTable
from app.tables.predictions import Estimate

# Operators whose library picks among kernels (Habitat, table 1).
VARYING = ("linear", "bmm", "conv2d", "recurrent")
# Rows kept per cell and GPU, of kernel-alike and of kernel-varying operators.
MOST_ROWS = (512, 2048)
_BANDWIDTH = COLUMN_INDEX["memory_bandwidth_bytes_per_s"]


@dataclass(frozen=True, eq=False)
class Habitat:
    """Wave scaling, and a perceptron for operators whose kernels differ between GPUs."""

    name: ClassVar[str] = "habitat"
    can: ClassVar[Capabilities] = Capabilities(("operators",), ("operators",), needs_training=True)

    cells_: Mapping[str, Samples] = field(default_factory=dict)

    def fit_operators(self, runs: Sequence[OperatorRuns], gpus: GpuTable) -> Self:
        """Itself with a sample of every GPU of every cell in `runs`; NotTrained where no cell has rows enough."""
        learned: dict[str, Samples] = {}
        for run in runs:
            new = _sample(run, gpus)
            if new is not None:
                key = cell_key(run.op, run.dtype)
                new = self.cells_[key].joined(new) if key in self.cells_ else new
                learned[key] = new.with_network() if run.op in VARYING else new
        if not learned:
            raise NotTrained(f"'{self.name}' learns from rows of one operator on one GPU; there are too few.")
        return type(self)({**self.cells_, **learned})

    def predict(self, ops: OpTable, gpus: GpuTable, i: Ints, j: Ints, *, evidence: Evidence) -> Estimate:
        """Latency of operator row `i[q]` on GPU row `j[q]`, float64 [n] seconds.

        Evidence that is the query's operator on another GPU is scaled; of several pieces the geometric mean counts.
        """

        def answer(cell: Cell) -> tuple[Floats, Ints] | None:
            samples = self.cells_.get(cell.key)
            if samples is None:
                return None
            outside = samples.outside(cell.ops) | (cell.ops.column("backward") > 0)
            return _answer(cell, samples, gpus), samples.gpus.situations(gpus, cell.gpu, outside)

        found = estimate(ops, gpus, i, j, answer)
        return with_evidence(found, ops, gpus, i, j, evidence)

    learned_cells = staticmethod(learned_cells)

    @staticmethod
    def layout(operators: Collection[str]) -> Layout:
        """Of a state that knows these operators."""
        return LAYOUT.joined(shape_layout(operators)).joined(Layout({"GPU's inputs of networks": NETWORK_FIGURES}))

    def state(self) -> dict[str, Any]:
        """Per cell its sample and network."""
        return {key: samples.state() for key, samples in self.cells_.items()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the object of a `state`."""
        return cls({key: Samples.from_state(of) for key, of in state.items()})


def _answer(cell: Cell, samples: Samples, gpus: GpuTable) -> Floats:
    """Seconds of a cell's queries, [m]."""
    peak = peaks(gpus)[DTYPE_CODE[cell.dtype], cell.gpu]
    if cell.op.name in VARYING:
        passes = 1.0 + cell.ops.column("backward")
        return passes * samples.learned_s(cell.ops, gpus, cell.gpu, peak)
    work = cell.work
    origin = samples.origins(gpus, cell.gpu)
    destination = figures_of(gpus, cell.gpu)
    share = memory_share(work.flops / work.bytes, peak / gpus.values[_BANDWIDTH, cell.gpu])
    ratio = scaled(samples.gpus.figures[:, origin], destination, share)
    return samples.nearest_s(origin, cell.ops, work.bytes) * ratio


def with_evidence(found: Estimate, ops: OpTable, gpus: GpuTable, i: Ints, j: Ints, evidence: Evidence) -> Estimate:
    """`found`, and wave scaling instead where the evidence has the query's own operator on another GPU."""
    rows, query = evidence.rows, evidence.query
    if not len(query) or rows.ops.fields != ops.fields:
        return found
    asked = i[query]
    same = np.isclose(rows.ops.dims, ops.dims[:, asked], rtol=0.0, equal_nan=True).all(axis=0)
    same &= (rows.ops.kind == ops.kind[asked]) & (rows.ops.dtype == ops.dtype[asked]) & (rows.gpu != j[query])
    rows, query = rows.take(np.flatnonzero(same)), query[same]
    work, target = work_of(rows.ops, kinds_of(rows.ops)), j[query]
    ridge = peaks(gpus)[rows.ops.dtype, target] / gpus.values[_BANDWIDTH, target]
    ratio = scaled(figures_of(gpus, rows.gpu), figures_of(gpus, target), memory_share(work.flops / work.bytes, ridge))
    total = np.bincount(query, np.log(rows.latency_s * ratio), len(i))
    count = np.bincount(query, minlength=len(i))
    latency = np.where(count > 0, np.exp(total / np.maximum(count, 1)), found.latency_s)
    return replace(found, latency_s=latency)


def _sample(run: OperatorRuns, gpus: GpuTable) -> Samples | None:
    """At most MOST_ROWS rows of every GPU, drawn with seed 0; None where no GPU has rows enough."""
    op = OPS[OP_CODE[run.op]]
    if op.link_bytes is not None:
        return None
    parts = {gpu: drawn(rows, MOST_ROWS[run.op in VARYING]) for gpu, rows in of_each_gpu(run)}
    if not parts:
        return None
    rows = run.rows.take(np.concatenate(list(parts.values())))
    names = shape_names(op)
    return Samples(
        KnownGpus.of(gpus, list(parts)),
        names,
        peaks(gpus)[DTYPE_CODE[run.dtype], list(parts)],
        np.repeat(np.arange(len(parts)), [len(part) for part in parts.values()]).astype(np.int16),
        points(rows.ops, names).astype(np.float32),
        np.log(op.work(rows.ops).bytes).astype(np.float32),
        np.log(rows.latency_s).astype(np.float32),
    )
