"""Queries grouped by cell, that is by operator and dtype, as operator predictors learn and answer them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from app.bands.groups import S_UNTRAINED, SUPPORT_OF_SITUATION, operator_codes
from app.ops import OP_CODE, OPS
from app.ops.base import COMMON, Op
from app.ops.figures import Work
from app.ops.kinds import kinds_of
from app.predictors.roofline import hardware_limit
from app.predictors.schema import Layout
from app.tables.arrays import Floats, Ints
from app.tables.gpus import GpuTable
from app.tables.operator_runs import OperatorRuns
from app.tables.ops import DTYPES, OpTable
from app.tables.predictions import Estimate

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


def learned_cells(state: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the operators and dtypes of a state whose keys are cells."""
    return [(op, dtype) for op, dtype in (key.split(" ") for key in state)]


def shape_layout(operators: Collection[str]) -> Layout:
    """Return the layout of `points` of these operators: their columns, and the choices of those that are codes."""
    found = Layout()
    for op in (OPS[OP_CODE[name]] for name in operators):
        codes = {f"{op.name}.{dim.name}": dim.choices for dim in op.dims if dim.choices}
        found = found.joined(Layout({f"shape of {op.name}": tuple(shape_names(op))}, codes))
    return found


def cells(ops: OpTable, i: Ints, j: Ints) -> Iterator[Cell]:
    """Yield the cells of the queries (`i[q]`, `j[q]`), in a table of one or of mixed operators."""
    for op, rows, table in kinds_of(ops.take(i)):
        query = np.arange(len(i))[rows]
        for code in np.unique(table.dtype):
            mine = np.flatnonzero(table.dtype == code)
            part = table if len(mine) == len(table) else table.take(mine)
            yield Cell(op, DTYPES[code], query[mine], part, j[query[mine]])


def estimate(
    ops: OpTable, gpus: GpuTable, i: Ints, j: Ints, answer: Callable[[Cell], tuple[Floats, Ints] | None]
) -> Estimate:
    """Return the estimates of `answer` per cell, (seconds [m], situation codes [m]); NaN if it returns None."""
    latency, situation = np.full(len(i), np.nan), np.full(len(i), S_UNTRAINED)
    for cell in cells(ops, i, j):
        if (answered := answer(cell)) is not None:
            latency[cell.query], situation[cell.query] = answered
    bound = hardware_limit(ops, gpus, i, j).bound
    group = operator_codes(ops.kind[i], ops.dtype[i], situation)
    return Estimate(latency, bound, SUPPORT_OF_SITUATION[situation], group)


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
