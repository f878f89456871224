"""Measured operators, and which of them bear on a query."""

from __future__ import annotations

from dataclasses import dataclass

from app.tables.arrays import Floats, Ints
from app.tables.ops import OpTable


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
        """The rows given, repeats allowed."""
        return Measurements(self.ops.take(rows), self.gpu[rows], self.latency_s[rows])


@dataclass(frozen=True, slots=True)
class Evidence:
    """Pairs (measurement, query): `rows` holds one measured row per pair.

    query  int [m], sorted: position in the query's index vectors that the row bears on
    """

    rows: Measurements
    query: Ints

    def __len__(self) -> int:
        return len(self.query)
