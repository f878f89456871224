"""Parts of one upload of measurements, before validation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from app.runtime.release import release
from app.wire.operator_columns import Column, slice_cells


@dataclass(frozen=True, slots=True)
class Objects:
    """Measurements as objects in the API's form; `position` is each row's place in the upload, int [n]."""

    rows: Sequence[Mapping[str, Any]]
    position: NDArray[np.intp]

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]]) -> Self:
        """Return all rows, in order."""
        return cls(rows, np.arange(len(rows)))

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, rows: slice) -> Objects:
        """Return consecutive rows."""
        return Objects(self.rows[rows], self.position[rows])


@dataclass(frozen=True, slots=True)
class OperatorColumns:
    """Measurements of operators in columns: n rows, with the fields of the measurement and of its operator.

    `position` is each row's place in the upload, int [n].
    """

    columns: Mapping[str, Column]
    position: NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.position)

    def part(self, rows: slice) -> OperatorColumns:
        """Return consecutive rows."""
        return OperatorColumns(
            {name: slice_cells(column, rows) for name, column in self.columns.items()}, self.position[rows]
        )


UploadPart: TypeAlias = Objects | OperatorColumns


@dataclass(frozen=True, slots=True)
class Upload:
    """One request body or file.

    parts    measured rows: operators in columns, others as objects
    skipped  reason -> number of rows that hold no measurement
    ignored  column -> number of rows, for columns that are only for human readers
    device   the specification of the measured GPU, as POST /gpus takes it, if the file has one
    """

    parts: tuple[UploadPart, ...]
    skipped: Counter[str] = field(default_factory=Counter)
    ignored: Counter[str] = field(default_factory=Counter)
    device: Mapping[str, Any] | None = None

    def __len__(self) -> int:
        return sum(map(len, self.parts)) + self.skipped.total()

    def release(self) -> None:
        """Free the rows that are objects; the upload has them no more."""
        for part in self.parts:
            if isinstance(part, Objects) and isinstance(part.rows, list):
                release(part.rows)
