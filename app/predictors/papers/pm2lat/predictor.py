"""`kernel_table`: PM2Lat (equations 1 and 2) on the available measurements.

Each operator on each GPU has its kernels, identified by name; each kernel has a table of throughput at powers of two of
K (papers.pm2lat.throughput_table) or, if memory-bound, a line in bytes and instructions (papers.pm2lat.memory_kernels);
and a chooser selects the kernel by shape. As in the paper, a GPU needs its own measurements; without them it borrows
the table of a GPU of the same architecture, with device time transferred by wave scaling; else the row is unsupported.
Collectives, recurrent layers, and backward of all but matrix products (two more products) are unsupported.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np

from app.errors import NotTrained
from app.ops import OP_CODE, OPS
from app.ops.base import Op
from app.ops.figures import Products
from app.predictors.base import Capabilities
from app.predictors.papers.habitat.wave_scaling import distance, memory_share, scaled
from app.predictors.papers.known_gpus import LAYOUT, KnownGpus, figures_of
from app.predictors.papers.pm2lat.kernel_chooser import PRODUCT_FEATURES
from app.predictors.papers.pm2lat.kernel_names import identity, parse
from app.predictors.papers.pm2lat.memory_kernels import METRICS, Counts, MemoryKernels
from app.predictors.papers.pm2lat.product_kernels import ProductKernels, Shapes
from app.predictors.papers.pm2lat.throughput_table import AXES
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

    def joined(self, newer: Tables) -> Tables:
        """Return these tables with those of `newer` added; `newer` wins for common GPUs."""
        gpus, keep = self.gpus.joined(newer.gpus)
        kept = tuple(self.kernels[k] for k in keep)
        return Tables(gpus, kept + newer.kernels, np.minimum(self.low, newer.low), np.maximum(self.high, newer.high))

    def sources(self, gpus: GpuTable, j: Ints) -> Ints:
        """Return the GPU whose table GPU row `j[q]` uses: its own, else the most similar sibling's, else -1."""
        own = self.gpus.find(gpus, j)
        apart = np.where(self.gpus.siblings(gpus, j), distance(self.gpus.figures, figures_of(gpus, j)), np.inf)
        lent = np.where(np.isfinite(apart).any(axis=0), apart.argmin(axis=0), -1)
        return np.where(own >= 0, own, lent)

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


@dataclass(frozen=True, eq=False)
class KernelTable:
    """Kernels with their throughput tables and lines, per operator, dtype and GPU."""

    name: ClassVar[str] = "kernel_table"
    can: ClassVar[Capabilities] = Capabilities(("operators",), ("operators",), needs_training=True)

    cells_: Mapping[str, Tables] = field(default_factory=dict)

    def fit_operators(self, runs: Sequence[OperatorRuns], gpus: GpuTable) -> Self:
        """Return the predictor with the kernels of all cells in `runs`; raises NotTrained if none has enough rows."""
        learned: dict[str, Tables] = {}
        for run in runs:
            if (new := _tables(run, gpus)) is not None:
                key = cell_key(run.op, run.dtype)
                learned[key] = self.cells_[key].joined(new) if key in self.cells_ else new
        if not learned:
            raise NotTrained(f"'{self.name}' learns from rows of one operator on one GPU; there are too few.")
        return type(self)({**self.cells_, **learned})

    def predict(self, ops: OpTable, gpus: GpuTable, i: Ints, j: Ints, *, evidence: Evidence) -> Estimate:
        """Return the estimates of operator row `i[q]` on GPU row `j[q]`; evidence is not used."""

        def answer(cell: Cell) -> tuple[Floats, Ints] | None:
            tables = self.cells_.get(cell.key)
            if tables is None:
                return None
            shape = points(cell.ops, shape_names(cell.op))
            beyond = (shape < tables.low) | (shape > tables.high)
            outside = np.logical_or.reduce(beyond, axis=1) | (cell.ops.column("backward") > 0)
            return _answer(cell, tables, gpus), tables.gpus.situations(gpus, cell.gpu, outside)

        return estimate(ops, gpus, i, j, answer)

    learned_cells = staticmethod(learned_cells)

    @staticmethod
    def layout(operators: Collection[str]) -> Layout:
        """Of a state that knows these operators."""
        axes = {"features of products": PRODUCT_FEATURES, "metrics of rows": METRICS, "throughput table": AXES}
        return LAYOUT.joined(shape_layout(operators)).joined(Layout(axes))

    def state(self) -> dict[str, Any]:
        """Per cell its GPUs and their kernels."""
        return {key: tables.state() for key, tables in self.cells_.items()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the object of a `state`."""
        return cls({key: Tables.from_state(of) for key, of in state.items()})


def _answer(cell: Cell, tables: Tables, gpus: GpuTable) -> Floats:
    """Return the seconds of a cell's queries, [m]."""
    seconds = np.full(len(cell.gpu), np.nan)
    source = tables.sources(gpus, cell.gpu)
    for known in np.unique(source[source >= 0]):
        mine = np.flatnonzero(source == known)
        ops, kernels = cell.ops.take(mine), tables.kernels[known]
        found = _seconds(cell.op, ops, kernels)
        lent = tables.gpus.find(gpus, cell.gpu[mine]) < 0
        if lent.any():
            ratio = _carried(cell, mine, tables.gpus.figures[:, [known]], gpus)
            found = np.where(lent, kernels.overhead_s + (found - kernels.overhead_s) * ratio, found)
        seconds[mine] = found
    return seconds


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
    products = op.products(ops)
    if products is None:
        raise ValueError(f"{op.name} is no matrix product")
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


def _tables(run: OperatorRuns, gpus: GpuTable) -> Tables | None:
    """Return the kernels of one cell from its forward rows; None if it is unsupported or no GPU has enough rows."""
    op = OPS[OP_CODE[run.op]]
    run = run.take(np.flatnonzero(run.rows.ops.column("backward") == 0))
    if op.group in UNSUPPORTED or not len(run):
        return None
    kernel, tiles = _kernels(run)
    found: dict[int, ProductKernels | MemoryKernels] = {}
    for gpu, rows in of_each_gpu(run):
        some = drawn(rows, MOST_ROWS)
        part = run.rows.take(some)
        one = _fitted(op, part.ops, part.latency_s, kernel[some], tiles, gpus.values[[_SMS, _L2], gpu])
        if one is not None:
            found[gpu] = one
    if not found:
        return None
    shape = points(run.rows.ops, shape_names(op))
    return Tables(KnownGpus.of(gpus, list(found)), tuple(found.values()), shape.min(axis=0), shape.max(axis=0))


def _fitted(
    op: Op, ops: OpTable, latency_s: Floats, kernel: Ints, tiles: Sequence[tuple[int, int]], figures: Floats
) -> ProductKernels | MemoryKernels | None:
    """Return the kernels of one GPU; `figures` are its SMs and bytes of L2."""
    sms, l2_bytes = figures.tolist()
    if op.products(ops) is None:
        return MemoryKernels.fitted(counts_of(op, ops, l2_bytes), latency_s, kernel, l2_bytes)
    return ProductKernels.fitted(shapes_of(op, ops), latency_s, kernel, tiles, sms)


def _kernels(run: OperatorRuns) -> tuple[Ints, list[tuple[int, int]]]:
    """Return the kernel of each row, int [n], by name identity, and each kernel's tile; unknown names are equal."""
    names = [*run.kernels, ""]
    known: dict[str, int] = {}
    code = np.array([known.setdefault(identity(name), len(known)) for name in names], dtype=np.intp)
    tiles = {code[position]: parse(name).tile for position, name in reversed([*enumerate(names)])}
    return code[run.kernel], [tiles[position] for position in range(len(known))]
