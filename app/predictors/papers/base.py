"""Base of the papers' learned predictors: models by operator and dtype, and the GPUs that each was trained on."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from app.bands.groups import (
    S_SEEN,
    S_SIBLING,
    S_UNSEEN,
    S_UNSEEN_OUTSIDE,
    S_UNTRAINED,
    SITUATIONS,
    SUPPORT_OF_SITUATION,
    operator_codes,
)
from app.errors import NotTrained
from app.ops import OP_CODE, OPS, kinds_of
from app.ops.base import COMMON, Op
from app.ops.figures import Work
from app.predictors.base import Capabilities
from app.predictors.roofline import hardware_limit
from app.predictors.schema import Layout
from app.tables.arrays import Bools, Floats, Ints
from app.tables.gpus import COLUMN_INDEX, SM_LIMITS, GpuTable
from app.tables.measurements import Evidence, OperatorRuns
from app.tables.ops import DTYPES, OpTable
from app.tables.predictions import Estimate

CODE = {name: code for code, name in enumerate(SITUATIONS)}

# Figures that are equal for GPUs of one architecture; for tensor formats, only whether they are supported.
_ALIKE = ("fp32_lanes_per_sm", "process_node_nm", *SM_LIMITS)
_PRESENT = ("peak_fp8_tensor_flops", "peak_fp4_tensor_flops")
FIGURES = ("sm_count", "boost_clock_hz", "memory_bandwidth_bytes_per_s", "memory_bytes", "max_threads_per_sm")
_ALIKE_ROWS = [COLUMN_INDEX[name] for name in _ALIKE]
_PRESENT_ROWS = [COLUMN_INDEX[name] for name in _PRESENT]
_FIGURE_ROWS = [COLUMN_INDEX[name] for name in FIGURES]

# Of what is kept of GPUs.
LAYOUT = Layout({"architecture of GPUs": (*_ALIKE, *_PRESENT), "figures of GPUs": FIGURES})

# The situation of a shape outside the training range; for a sibling it is that of any unseen GPU.
_OUTSIDE = np.array([CODE.get(f"{name}_outside", code) for code, name in enumerate(SITUATIONS)])
_OUTSIDE[S_SIBLING] = S_UNSEEN_OUTSIDE


def architectures(gpus: GpuTable) -> Floats:
    """Return the figures that identify architectures, float64 [figures, gpus]; absent ones are -1, to compare equal."""
    alike = np.nan_to_num(gpus.values[_ALIKE_ROWS], nan=-1.0)
    return np.concatenate([alike, ~np.isnan(gpus.values[_PRESENT_ROWS])])


@dataclass(frozen=True, slots=True, eq=False)
class KnownGpus:
    """k GPUs by id.

    architecture  float64 [figures, k], as `architectures`
    figures       float64 [5, k]: SMs, clock in Hz, bytes/s, bytes of memory, threads per SM
    """

    ids: tuple[str, ...]
    architecture: Floats
    figures: Floats

    @classmethod
    def of(cls, gpus: GpuTable, rows: Sequence[int]) -> Self:
        """Return the given rows of a table."""
        j = np.array(rows, dtype=np.intp)
        return cls(tuple(gpus.ids[k] for k in rows), architectures(gpus)[:, j], gpus.values[_FIGURE_ROWS][:, j])

    def __len__(self) -> int:
        return len(self.ids)

    def joined(self, newer: KnownGpus) -> tuple[KnownGpus, Ints]:
        """Return these GPUs without those of `newer`, followed by `newer`; and the positions of the former."""
        keep = np.array([k for k, name in enumerate(self.ids) if name not in newer.ids], dtype=np.intp)
        return KnownGpus(
            (*(self.ids[k] for k in keep), *newer.ids),
            np.concatenate([self.architecture[:, keep], newer.architecture], axis=1),
            np.concatenate([self.figures[:, keep], newer.figures], axis=1),
        ), keep

    def find(self, gpus: GpuTable, j: Ints) -> Ints:
        """Return the position of GPU row `j[q]` among these, int [n]; -1 if unknown."""
        position = {name: k for k, name in enumerate(self.ids)}
        rows, back = np.unique(j, return_inverse=True)
        return np.array([position.get(gpus.ids[k], -1) for k in rows], dtype=np.intp)[back]

    def siblings(self, gpus: GpuTable, j: Ints) -> Bools:
        """Return True for GPUs with the architecture of GPU row `j[q]`, bool [k, n]."""
        rows, back = np.unique(j, return_inverse=True)
        queried = architectures(gpus)[:, rows]
        alike: Bools = (self.architecture[:, :, None] == queried[:, None, :]).all(axis=0)[:, back]
        return alike

    def situations(self, gpus: GpuTable, j: Ints, outside: Bools) -> Ints:
        """Return the situation of GPU row `j[q]`, code into SITUATIONS, [n]; `outside` the training range of shapes."""
        sibling = np.where(self.siblings(gpus, j).any(axis=0), S_SIBLING, S_UNSEEN)
        situation = np.where(self.find(gpus, j) >= 0, S_SEEN, sibling)
        return np.where(outside, _OUTSIDE[situation], situation)

    def state(self) -> dict[str, Any]:
        """Return plain containers and arrays."""
        return {"ids": list(self.ids), "architecture": self.architecture, "figures": self.figures}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the object of a `state`."""
        return cls(tuple(state["ids"]), state["architecture"], state["figures"])


def figures_of(gpus: GpuTable, j: Ints) -> Floats:
    """Return the figures of KnownGpus for GPU rows `j`, float64 [5, n]."""
    figures: Floats = gpus.values[_FIGURE_ROWS][:, j]
    return figures


# Least number of a GPU's rows in a cell for a fit.
LEAST_ROWS = 8

_COMMON = {name for dim in COMMON for name in dim.columns}


class Cell(NamedTuple):
    """Queries of one cell.

    op, dtype  the operator, and the name of the number format
    query      int [m], positions of these queries among all
    ops        OpTable of m rows, one per query
    gpu        int [m], queried rows of the GpuTable
    """

    op: Op
    dtype: str
    query: Ints
    ops: OpTable
    gpu: Ints

    @property
    def key(self) -> str:
        """Key of the cell in a state."""
        return cell_key(self.op.name, self.dtype)

    @property
    def work(self) -> Work:
        """FLOPs and bytes of every query."""
        return self.op.work(self.ops)


def cell_key(op: str, dtype: str) -> str:
    """Return the key of a cell in a state."""
    return f"{op} {dtype}"


def shape_layout(operators: Collection[str]) -> Layout:
    """Return the layout of `points` of these operators: their columns, and the choices of those that are codes."""
    layout = Layout()
    for op in (OPS[OP_CODE[name]] for name in operators):
        codes = {f"{op.name}.{dim.name}": dim.choices for dim in op.dims if dim.choices}
        layout = layout.joined(Layout({f"shape of {op.name}": tuple(shape_names(op))}, codes))
    return layout


def cells(ops: OpTable, i: Ints, j: Ints) -> Iterator[Cell]:
    """Yield the cells of the queries (`i[q]`, `j[q]`), in a table of one or of mixed operators."""
    for op, rows, table in kinds_of(ops.take(i)):
        query = np.arange(len(i))[rows]
        for code in np.unique(table.dtype):
            mine = np.flatnonzero(table.dtype == code)
            part = table if len(mine) == len(table) else table.take(mine)
            yield Cell(op, DTYPES[code], query[mine], part, j[query[mine]])


def of_each_gpu(runs: OperatorRuns) -> Iterator[tuple[int, Ints]]:
    """Yield every GPU with enough rows: its row of the GpuTable, and its rows of the cell."""
    for gpu in np.unique(runs.rows.gpu):
        rows = np.flatnonzero(runs.rows.gpu == gpu)
        if len(rows) >= LEAST_ROWS:
            yield int(gpu), rows


def drawn(rows: Ints, most: int) -> Ints:
    """Return at most `most` of the rows, drawn with seed 0, in order."""
    if len(rows) <= most:
        return rows
    return np.sort(np.random.default_rng(0).choice(rows, most, replace=False))


def points(ops: OpTable, names: list[str]) -> Floats:
    """Return shapes as log2(1 + dimension), float64 [n, names]; absent dimensions are 0."""
    shape = np.stack([ops.column(name) for name in names], axis=1)
    logs: Floats = np.log2(1.0 + np.nan_to_num(shape))
    return logs


def shape_names(op: Op) -> list[str]:
    """Return the columns of an operator that describe its shape."""
    of_shape = [dim for dim in op.dims if dim.feature not in ("class", "layout")]
    return [name for dim in of_shape for name in dim.columns if name not in _COMMON]


@dataclass(frozen=True, eq=False)
class CellPredictor:
    """A predictor of operators that has a model per cell.

    model        class of its models: `fitted(run, gpus)` from a cell's rows, None if they are too few; `joined(newer)`,
                 which wins for common GPUs; `answer(cell, gpus)`; `state()` and `from_state(state)`
    learns_from  what a model needs, in the words of an error
    """

    name: ClassVar[str]
    can: ClassVar[Capabilities] = Capabilities(("operators",), ("operators",), needs_training=True)
    model: ClassVar[type[Any]]
    learns_from: ClassVar[str] = "rows of one operator on one GPU"

    cells_: Mapping[str, Any] = field(default_factory=dict)

    def fit_operators(self, runs: Sequence[OperatorRuns], gpus: GpuTable) -> Self:
        """Return the predictor with the cells of `runs` learned; raises NotTrained if none has enough rows."""
        learned = {key: model for run in runs for key, model in self.models_of(run, gpus)}
        if not learned:
            raise NotTrained(f"'{self.name}' learns from {self.learns_from}; there are too few.")
        joined = {key: self.cells_[key].joined(new) if key in self.cells_ else new for key, new in learned.items()}
        return type(self)({**self.cells_, **joined})

    def models_of(self, run: OperatorRuns, gpus: GpuTable) -> Iterator[tuple[str, Any]]:
        """Yield the models that rows of one operator and dtype teach, with their keys in a state."""
        new = self.model.fitted(run, gpus)
        if new is not None:
            yield cell_key(run.op, run.dtype), new

    def predict(self, ops: OpTable, gpus: GpuTable, i: Ints, j: Ints, *, evidence: Evidence) -> Estimate:
        """Return the estimates of operator row `i[q]` on GPU row `j[q]`; evidence is not used."""
        latency, situation = np.full(len(i), np.nan), np.full(len(i), S_UNTRAINED)
        for cell in cells(ops, i, j):
            if (answered := self.answer(cell, gpus)) is not None:
                latency[cell.query], situation[cell.query] = answered
        bound = hardware_limit(ops, gpus, i, j).bound
        group = operator_codes(ops.kind[i], ops.dtype[i], situation)
        return Estimate(latency, bound, SUPPORT_OF_SITUATION[situation], group)

    def answer(self, cell: Cell, gpus: GpuTable) -> tuple[Floats, Ints] | None:
        """Return seconds [m], NaN if unsupported, and situations [m] of a cell's queries; None: not learned."""
        model = self.cells_.get(cell.key)
        answered: tuple[Floats, Ints] | None = None if model is None else model.answer(cell, gpus)
        return answered

    @staticmethod
    def learned_cells(state: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Return the operators and dtypes that a state knows."""
        return [(op, dtype) for op, dtype in (key.split(" ") for key in state)]

    @staticmethod
    def layout(operators: Collection[str]) -> Layout:
        """Return the layout of a state that knows these operators."""
        return LAYOUT.joined(shape_layout(operators))

    def state(self) -> dict[str, Any]:
        """Return the state of each cell's model, by key."""
        return {key: model.state() for key, model in self.cells_.items()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the object of a `state`."""
        return cls({key: cls.model.from_state(of) for key, of in state.items()})
