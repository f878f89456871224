"""Measured operators: as evidence for queries, and as the training data of predictors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.tables.arrays import Floats, Ints
from app.tables.ops import OpTable, concatenate


@dataclass(frozen=True, slots=True)
class Measurements:
    """Measured rows.

    ops        OpTable of m rows
    gpu        int [m], row of the GpuTable used beside this table
    latency_s  float64 [m], median or mean device time, seconds
    """

    ops: OpTable
    gpu: Ints
    latency_s: Floats

    def __len__(self) -> int:
        return len(self.latency_s)

    def take(self, rows: Ints) -> Measurements:
        """Return the given rows, which may repeat."""
        return Measurements(self.ops.take(rows), self.gpu[rows], self.latency_s[rows])


def stacked(parts: Sequence[Measurements]) -> Measurements:
    """Return measured rows one after another; their tables of operators have equal fields."""
    return Measurements(
        concatenate([part.ops for part in parts]),
        np.concatenate([part.gpu for part in parts]),
        np.concatenate([part.latency_s for part in parts]),
    )


@dataclass(frozen=True, slots=True)
class Evidence:
    """m pairs of measurement and query.

    rows   the measured row of each pair
    query  int [m], sorted: the query of each pair
    """

    rows: Measurements
    query: Ints

    def __len__(self) -> int:
        return len(self.query)


@dataclass(frozen=True, slots=True)
class OperatorRuns:
    """n measured rows of one operator in one dtype.

    op, dtype    names, as in `app.ops.OPS` and `app.tables.ops.DTYPES`
    rows         Measurements of this operator's own fields; `rows.gpu` are rows of the GpuTable used beside this
    software     int [n], code into `stacks`
    kernel       int [n], code into `kernels`, the device function with the largest share of the time; -1 if unknown
    grid, block  float64 [3, n], blocks of its grid and threads of its block in x, y and z; NaN if unknown
    key          uint64 [n], the start of the row's identity: the same for the same row wherever it is read
    stacks, kernels  names behind the codes
    """

    op: str
    dtype: str
    rows: Measurements
    software: Ints
    kernel: Ints
    grid: Floats
    block: Floats
    key: NDArray[np.uint64]
    stacks: tuple[str, ...]
    kernels: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.key)

    def take(self, rows: Ints) -> OperatorRuns:
        """Return the given rows, which may repeat."""
        return OperatorRuns(
            self.op,
            self.dtype,
            self.rows.take(rows),
            self.software[rows],
            self.kernel[rows],
            self.grid[:, rows],
            self.block[:, rows],
            self.key[rows],
            self.stacks,
            self.kernels,
        )
