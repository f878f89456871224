"""Training of an operator predictor, with its errors on held-out rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.bands.conformal import Intervals
from app.predictors.base import OperatorLearner
from app.tables.gpus import GpuTable
from app.tables.operator_runs import OperatorRuns
from app.training.operator_start import Start
from app.training.operator_validation import HeldOut, held_out


@dataclass(frozen=True, slots=True)
class TrainedOperators:
    """A fitted predictor, its intervals, and the held-out answers behind them."""

    predictor: Any
    intervals: Intervals
    held_out: HeldOut


def trained(start: OperatorLearner, runs: Sequence[OperatorRuns], gpus: GpuTable) -> TrainedOperators:
    """Return `start` trained on `runs`, and validated on rows held out of a predictor trained from scratch.

    Raises NotTrained if there are too few rows; groups that cannot be held out keep their prior intervals.
    """
    predictor = start.fit_operators(runs, gpus)
    found = held_out(Start(type(start)), runs, gpus, lambda said: None)
    return TrainedOperators(predictor, found.intervals(), found)
