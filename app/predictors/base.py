"""The form of a predictor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from app.tables.gpus import GpuTable
from app.tables.measurements import Evidence, Measurements
from app.tables.ops import OpTable
from app.tables.predictions import Estimate

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]


class Predictor(Protocol):
    """Pure and vectorised; never raises on a valid row: no support is a NaN latency."""

    name: ClassVar[str]
    trainable: ClassVar[bool]
    needs_training: ClassVar[bool]

    def predict(self, ops: OpTable, gpus: GpuTable, i: Ints, j: Ints, *, evidence: Evidence) -> Estimate:
        """Latency of operator row `i[q]` on GPU row `j[q]` for every query q, given its evidence."""
        ...


class Trainable(Predictor, Protocol):
    """The constructor stores; `fit` learns attributes ending in `_` and returns itself."""

    def fit(self, measurements: Measurements, gpus: GpuTable, *, target_gpu: str | None = None) -> Self:
        """Learn from measured rows; `measurements.gpu` are rows of `gpus`.

        With `target_gpu`, an id, the result answers for that GPU only.
        """
        ...

    def state(self) -> dict[str, Any]:
        """What was learned as NumPy arrays and plain containers, enough to serve from."""
        ...

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """A ready predictor from `state()`, without scikit-learn."""
        ...
