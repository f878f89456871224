"""Interface of predictors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from app.tables.gpus import GpuTable
from app.tables.measurements import Evidence
from app.tables.operator_runs import OperatorRuns
from app.tables.ops import OpTable
from app.tables.predictions import Estimate

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]


class Predictor(Protocol):
    """A pure, vectorised predictor. It never raises on a valid row: an unsupported row has a NaN latency.

    A `trainable` predictor also has `fit(measurements, gpus, *, target_gpu=None)`, which returns it fitted, for one
    GPU if its id is given; `state()`, its parameters as NumPy arrays and plain containers; the class method
    `from_state(state)`, which restores it without scikit-learn; and two functions about states: `learned_cells(state)`,
    the operators and dtypes that a state knows, and `layout(operators)`, the app.predictors.schema.Layout of a state
    that knows these operators.
    """

    name: ClassVar[str]
    trainable: ClassVar[bool]
    needs_training: ClassVar[bool]

    def predict(self, ops: OpTable, gpus: GpuTable, i: Ints, j: Ints, *, evidence: Evidence) -> Estimate:
        """Return the estimate of operator row `i[q]` on GPU row `j[q]` for every query q, given its evidence."""
        ...


class OperatorLearner(Predictor, Protocol):
    """A predictor that learns deep-learning operators from measurements."""

    def fit_operators(self, runs: Sequence[OperatorRuns], gpus: GpuTable) -> Self:
        """Return a predictor with the operators and dtypes of `runs` learned; `self` does not change.

        Models of operators, dtypes and GPUs that `runs` lacks are kept. Raises NotTrained if there are too few rows.
        """
        ...
