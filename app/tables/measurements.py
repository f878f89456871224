"""Measured operators, and their use as evidence for queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

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
