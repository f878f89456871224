"""The form of a predictor."""

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
    """Pure and vectorised; never raises on a valid row: no support is a NaN latency.

    One that learns (`trainable`) also has `fit(measurements, gpus, *, target_gpu=None)`, which returns it fitted, for
    one GPU's id only if given; `state()`, what was learned as NumPy arrays and plain containers; the class method
    `from_state(state)`, which makes it ready to serve without scikit-learn; and two functions that say what a state
    relies on: `learned_cells(state)`, the operators and dtypes that it knows, and `layout(operators)`, the
    app.predictors.schema.Layout of a state that knows these operators.
    """

    name: ClassVar[str]
    trainable: ClassVar[bool]
    needs_training: ClassVar[bool]

    def predict(self, ops: OpTable, gpus: GpuTable, i: Ints, j: Ints, *, evidence: Evidence) -> Estimate:
        """Latency of operator row `i[q]` on GPU row `j[q]` for every query q, given its evidence."""
        ...


class OperatorLearner(Predictor, Protocol):
    """A predictor that learns deep-learning operators from measured rows."""

    def fit_operators(self, runs: Sequence[OperatorRuns], gpus: GpuTable) -> Self:
        """Itself with the operators and dtypes of `runs` learned; `self` does not change.

        What was learned before from other operators, dtypes or GPUs than those of `runs` stays. NotTrained where
        there is too little to learn anything from.
        """
        ...
