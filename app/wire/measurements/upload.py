"""What one body or file of measurements holds, before anything is checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from app.wire.operators.columns import Column, cut


@dataclass(frozen=True, slots=True)
class Objects:
    """Measurements as objects in the API's form; `position` says where each stood in what was sent, int [n]."""

    rows: Sequence[Mapping[str, Any]]
    position: NDArray[np.intp]

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]]) -> Self:
        """All that was sent."""
        return cls(rows, np.arange(len(rows)))

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, rows: slice) -> Objects:
        """Consecutive rows."""
        return Objects(self.rows[rows], self.position[rows])


@dataclass(frozen=True, slots=True)
class OperatorColumns:
    """Measurements of operators as they were sent: n rows in columns, a measurement's and its operator's.

    `position` says where each row stood in what was sent, int [n].
    """

    columns: Mapping[str, Column]
    position: NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.position)

    def part(self, rows: slice) -> OperatorColumns:
        """Consecutive rows."""
        return OperatorColumns({name: cut(column, rows) for name, column in self.columns.items()}, self.position[rows])


Sent: TypeAlias = Objects | OperatorColumns


@dataclass(frozen=True, slots=True)
class Upload:
    """One body or file.

    parts    its measured rows: operators in columns, others as objects
    skipped  rows that were not measured: why, and how many
    ignored  columns that are read by people only: how many rows have them
    device   the specification of the GPU that it was measured on, as POST /gpus takes it, where the file carries one
    """

    parts: tuple[Sent, ...]
    skipped: Counter[str] = field(default_factory=Counter)
    ignored: Counter[str] = field(default_factory=Counter)
    device: Mapping[str, Any] | None = None

    def __len__(self) -> int:
        return sum(map(len, self.parts)) + self.skipped.total()
