"""`kernel_table`: PM2Lat (equations 1 and 2) on the available measurements.

Each operator on each GPU has its kernels, identified by name; each kernel has a table of throughput at powers of two of
K (papers.pm2lat.throughput_table) or, if memory-bound, a line in bytes and instructions (papers.pm2lat.memory_kernels);
and a chooser selects the kernel by shape. As in the paper, a GPU needs its own measurements; without them it borrows
the table of a GPU of the same architecture, with device time transferred by wave scaling; else the row is unsupported.
Collectives, recurrent layers, and backward of all but matrix products (two more products) are unsupported.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from app.ops import OP_CODE, OPS
from app.ops.base import Op
from app.ops.figures import Products
from app.predictors.papers.base import (
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
from app.predictors.papers.habitat import distance, memory_share, scaled
from app.predictors.papers.pm2lat.kernel_names import identity, parse
from app.predictors.papers.pm2lat.kernels import (
    METRICS,
    PRODUCT_FEATURES,
    Counts,
    MemoryKernels,
    ProductKernels,
    Shapes,
)
from app.predictors.papers.pm2lat.throughput_table import AXES
from app.predictors.roofline import peaks
from app.predictors.schema import Layout
from app.tables.arrays import Floats, Ints
from app.tables.gpus import COLUMN_INDEX, GpuTable
from app.tables.measurements import OperatorRuns
from app.tables.ops import DTYPE_CODE, OpTable

# Operators whose kernels depend only on their products.
PLAIN = ("linear", "bmm")
# Rows of an operator, dtype and GPU that its kernels are fitted to, at most; published sweeps have up to 150,000.
MOST_ROWS = 20_000
UNSUPPORTED = ("recurrent", "collective")
_SMS, _L2 = COLUMN_INDEX["sm_count"], COLUMN_INDEX["l2_bytes"]
_BANDWIDTH = COLUMN_INDEX["memory_bandwidth_bytes_per_s"]


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """One cell: the kernels of each GPU in `gpus`, in order, and the range of log2 dimensions learned from, [d]."""

    gpus: KnownGpus
    kernels: tuple[ProductKernels | MemoryKernels, ...]
    low: Floats
    high: Floats

    @classmethod
    def fitted(cls, run: OperatorRuns, gpus: GpuTable) -> Self | None:
        """Return the kernels of one cell from its forward rows; None if unsupported or if no GPU has enough rows."""
        op = OPS[OP_CODE[run.op]]
        run = run.take(np.flatnonzero(run.rows.ops.column("backward") == 0))
        if op.group in UNSUPPORTED or not len(run):
            return None
        kernel, tiles = _kernels(run)
        kernels: dict[int, ProductKernels | MemoryKernels] = {}
        for gpu, rows in of_each_gpu(run):
            some = drawn(rows, MOST_ROWS)
            part = run.rows.take(some)
            one = _fitted(op, part.ops, part.latency_s, kernel[some], tiles, gpus.values[[_SMS, _L2], gpu])
            if one is not None:
                kernels[gpu] = one
        if not kernels:
            return None
        shape = points(run.rows.ops, shape_names(op))
        return cls(KnownGpus.of(gpus, list(kernels)), tuple(kernels.values()), shape.min(axis=0), shape.max(axis=0))

    def answer(self, cell: Cell, gpus: GpuTable) -> tuple[Floats, Ints]:
        """Return seconds and situations, of which a shape beyond those learned from and backward are outside."""
        shape = points(cell.ops, shape_names(cell.op))
        outside = np.logical_or.reduce((shape < self.low) | (shape > self.high), axis=1)
        outside |= cell.ops.column("backward") > 0
        return self._seconds(cell, gpus), self.gpus.situations(gpus, cell.gpu, outside)

    def _seconds(self, cell: Cell, gpus: GpuTable) -> Floats:
        seconds = np.full(len(cell.gpu), np.nan)
        source = self.sources(gpus, cell.gpu)
        for known in np.unique(source[source >= 0]):
            mine = np.flatnonzero(source == known)
            kernels = self.kernels[known]
            own = _seconds(cell.op, cell.ops.take(mine), kernels)
            borrowed = self.gpus.find(gpus, cell.gpu[mine]) < 0
            if borrowed.any():
                ratio = _carried(cell, mine, self.gpus.figures[:, [known]], gpus)
                own = np.where(borrowed, kernels.overhead_s + (own - kernels.overhead_s) * ratio, own)
            seconds[mine] = own
        return seconds

    def joined(self, newer: Tables) -> Self:
        """Return these tables with those of `newer` added; `newer` wins for common GPUs."""
        gpus, keep = self.gpus.joined(newer.gpus)
        kept = tuple(self.kernels[k] for k in keep)
        low, high = np.minimum(self.low, newer.low), np.maximum(self.high, newer.high)
        return type(self)(gpus, kept + newer.kernels, low, high)

    def sources(self, gpus: GpuTable, j: Ints) -> Ints:
        """Return the GPU whose table GPU row `j[q]` uses: its own, else the most similar sibling's, else -1."""
        own = self.gpus.find(gpus, j)
        apart = np.where(self.gpus.siblings(gpus, j), distance(self.gpus.figures, figures_of(gpus, j)), np.inf)
        borrowed = np.where(np.isfinite(apart).any(axis=0), apart.argmin(axis=0), -1)
        return np.where(own >= 0, own, borrowed)

    def state(self) -> dict[str, Any]:
        """Return plain containers and arrays."""
        kernels = [one.state() for one in self.kernels]
        return {"gpus": self.gpus.state(), "kernels": kernels, "low": self.low, "high": self.high}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the object of a `state`."""
        kernels = tuple(
            (MemoryKernels if "coefficients" in one else ProductKernels).from_state(one) for one in state["kernels"]
        )
        return cls(KnownGpus.from_state(state["gpus"]), kernels, state["low"], state["high"])


def _carried(cell: Cell, mine: Ints, origin: Floats, gpus: GpuTable) -> Floats:
    """Return the ratio of device time on the queried GPU to that on the table's GPU, by wave scaling, [m]."""
    work, gpu = cell.op.work(cell.ops.take(mine)), cell.gpu[mine]
    ridge = peaks(gpus)[DTYPE_CODE[cell.dtype], gpu] / gpus.values[_BANDWIDTH, gpu]
    share = memory_share(work.flops / work.bytes, ridge)
    return scaled(np.broadcast_to(origin, (len(origin), len(mine))), figures_of(gpus, gpu), share)


def _seconds(op: Op, ops: OpTable, kernels: ProductKernels | MemoryKernels) -> Floats:
    """Return the seconds of rows by one GPU's kernels, [m]."""
    if isinstance(kernels, MemoryKernels):
        return kernels.predict(counts_of(op, ops, kernels.l2_bytes))
    forward = kernels.predict(shapes_of(op, ops))
    back = ops.column("backward") > 0
    if not back.any():
        return forward
    if op.name not in PLAIN:
        return np.where(back, np.nan, forward)
    b, m, n, k = shapes_of(op, ops).products
    none = np.empty((len(ops), 0))
    # dX = dY W and dW = dY^T X.
    twice = [kernels.predict(Shapes(Products(b, *sizes), none)) for sizes in ((m, k, n), (k, n, m))]
    return np.where(back, twice[0] + twice[1], forward)


def shapes_of(op: Op, ops: OpTable) -> Shapes:
    """Return rows as products; K is the FLOPs per output, so attention loops over keys and MoE over both layers."""
    if op.products is None:
        raise ValueError(f"{op.name} is no matrix product")
    products = op.products(ops)
    if op.name in PLAIN:
        return Shapes(products, np.empty((len(ops), 0)))
    b, m, n, _ = products
    flops = op.work(ops).flops / (1.0 + (ops.column("backward") > 0))
    return Shapes(Products(b, m, n, flops / (2.0 * b * m * n)), points(ops, shape_names(op)))


def counts_of(op: Op, ops: OpTable, l2_bytes: float) -> Counts:
    """Return rows as bytes, bytes that do not fit into an L2 of `l2_bytes`, instructions, and rows of the operator."""
    work = op.work(ops)
    spilled = np.minimum(work.bytes, np.maximum(work.working_set_bytes - l2_bytes, 0.0))
    rows = ops.column("b") if "b" in op.fields else np.zeros(len(ops))
    return Counts(np.stack([work.bytes, spilled, work.flops, rows]), points(ops, shape_names(op)))


def _fitted(
    op: Op, ops: OpTable, latency_s: Floats, kernel: Ints, tiles: Sequence[tuple[int, int]], figures: Floats
) -> ProductKernels | MemoryKernels | None:
    """Return the kernels of one GPU; `figures` are its SMs and bytes of L2."""
    sms, l2_bytes = figures.tolist()
    if op.products is None:
        return MemoryKernels.fitted(counts_of(op, ops, l2_bytes), latency_s, kernel, l2_bytes)
    return ProductKernels.fitted(shapes_of(op, ops), latency_s, kernel, tiles, sms)


def _kernels(run: OperatorRuns) -> tuple[Ints, list[tuple[int, int]]]:
    """Return the kernel of each row, int [n], by name identity, and each kernel's tile; unknown names are equal."""
    names = [*run.kernels, ""]
    known: dict[str, int] = {}
    code = np.array([known.setdefault(identity(name), len(known)) for name in names], dtype=np.intp)
    tiles = {code[position]: parse(name).tile for position, name in reversed([*enumerate(names)])}
    return code[run.kernel], [tiles[position] for position in range(len(known))]


class KernelTable(CellPredictor):
    """Kernels with their throughput tables and lines, per operator, dtype and GPU."""

    name = "kernel_table"
    model = Tables

    @staticmethod
    def layout(operators: Collection[str]) -> Layout:
        """Return the layout of a state that knows these operators."""
        axes = {"features of products": PRODUCT_FEATURES, "metrics of rows": METRICS, "throughput table": AXES}
        return LAYOUT.joined(shape_layout(operators)).joined(Layout(axes))
