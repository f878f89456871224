"""Interface of predictors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self, TypeGuard

import numpy as np
from numpy.typing import NDArray

from app.tables.arrays import Floats, Ints
from app.tables.gpus import GpuTable
from app.tables.measurements import Evidence, Measurements, OperatorRuns
from app.tables.ops import OpTable
from app.tables.predictions import Estimate, Predictions

# What can be predicted and learned from: launches of kernels, deep-learning operators, whole networks as one row each.
Subject = Literal["launches", "operators", "networks"]


class Capabilities(NamedTuple):
    """Capabilities of a predictor; callers check these and never its class.

    predicts        what it answers for
    learns          what it learns from: a `LaunchLearner`, an `OperatorLearner` (also of networks), or both
    needs_training  whether it answers only once it is trained
    takes_measured  whether measured rows correct it without training, and answer for themselves: a `Calibrated`
    explains        whether it says why it answers what it does: an `Explainer`
    """

    predicts: tuple[Subject, ...]
    learns: tuple[Subject, ...] = ()
    needs_training: bool = False
    takes_measured: bool = False
    explains: bool = False

    @property
    def trainable(self) -> bool:
        """Whether it learns from anything."""
        return bool(self.learns)

    @property
    def learns_launches(self) -> bool:
        """Whether it learns from measured launches of kernels."""
        return "launches" in self.learns

    @property
    def learns_operators(self) -> bool:
        """Whether it learns from measured rows of operators, or of networks as operators."""
        return bool({"operators", "networks"} & {*self.learns})

    @property
    def only_networks(self) -> bool:
        """Whether it knows whole networks and nothing else."""
        return self.predicts == ("networks",)


class Predictor(Protocol):
    """A pure, vectorised predictor. It never raises on a valid row: an unsupported row has a NaN latency.

    One that learns also has `state()`, its parameters as NumPy arrays and plain containers; the class method
    `from_state(state)`, which restores it without scikit-learn; and two functions about states: `learned_cells(state)`,
    the operators and dtypes that a state knows, and `layout(operators)`, the app.predictors.schema.Layout of a state
    that knows these operators.
    """

    name: ClassVar[str]
    can: ClassVar[Capabilities]

    def predict(self, ops: OpTable, gpus: GpuTable, i: Ints, j: Ints, *, evidence: Evidence) -> Estimate:
        """Return the estimate of operator row `i[q]` on GPU row `j[q]` for every query q, given its evidence."""
        ...


class LaunchLearner(Predictor, Protocol):
    """A predictor that learns launches of kernels."""

    def fit(self, measurements: Measurements, gpus: GpuTable, *, target_gpu: str | None = None) -> Self:
        """Itself fitted, for one GPU's id only if given."""
        ...

    def state(self) -> dict[str, Any]:
        """What was learned."""
        ...

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """The inverse of `state`."""
        ...


class OperatorLearner(Predictor, Protocol):
    """A predictor that learns deep-learning operators from measurements."""

    def fit_operators(self, runs: Sequence[OperatorRuns], gpus: GpuTable) -> Self:
        """Return a predictor with the operators and dtypes of `runs` learned; `self` does not change.

        Models of operators, dtypes and GPUs that `runs` lacks are kept. Raises NotTrained if there are too few rows.
        """
        ...


class Calibrated(OperatorLearner, Protocol):
    """A predictor that measured rows correct without training."""

    def with_measured(self, runs: Sequence[OperatorRuns], gpus: GpuTable) -> Self:
        """Itself corrected for GPUs of which `runs` hold some rows: takes seconds."""
        ...

    def corrections(self, runs: Sequence[OperatorRuns], gpus: GpuTable) -> Any:
        """What `with_measured` fits, for `with_corrections`; those of one operator on one GPU depend on no others."""
        ...

    def with_corrections(self, parts: Iterable[Any], gpus: GpuTable, prepared: Any | None = None) -> Self:
        """Itself with the corrections of distinct operators or GPUs: takes milliseconds.

        `prepared`: what `prepared` returned for the same corrections, perhaps in another process; None: the first
        answer derives it.
        """
        ...

    def prepared(self, gpus: GpuTable) -> Any:
        """What a predictor with corrections derives from them to answer on these GPUs, for `with_corrections`."""
        ...

    def ran_on(self, gpu: str) -> NDArray[np.bool_]:
        """Operators and dtypes that were measured on a GPU, by its id, bool [kinds, dtypes]."""
        ...

    def expected_errors(self, rows: Measurements, gpus: GpuTable) -> Floats | None:
        """Covariance of the errors of rows of one operator, dtype and GPU while none is measured, float64 [n, n].

        Their times are not looked at. None where the GPU has a model of its own, which few rows do not change.
        """
        ...


class Explainer(Predictor, Protocol):
    """A predictor that says why it answers what it does."""

    def explained(self, ops: OpTable, gpus: GpuTable, j: Ints, answer: Predictions) -> Sequence[Any]:
        """An explanation (app.predictors.auto.operators.explain) of row `q` of `ops` on GPU row `j[q]`."""
        ...


def explainer(predictor: Predictor) -> TypeGuard[Explainer]:
    """Whether it explains."""
    return predictor.can.explains


def calibrated(predictor: Predictor) -> TypeGuard[Calibrated]:
    """Whether it takes measured rows."""
    return predictor.can.takes_measured
