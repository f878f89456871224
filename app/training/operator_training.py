"""A predictor of operators fitted to measured rows, with intervals for what it then answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.predictors.base import OperatorLearner
from app.predictors.intervals import Intervals
from app.tables.gpus import GpuTable
from app.tables.operator_runs import OperatorRuns


def trained(predictor: type[Any], runs: Sequence[OperatorRuns], gpus: GpuTable) -> tuple[OperatorLearner, Intervals]:
    """The predictor fitted to `runs`, and documented prior intervals. NotTrained where there is too little."""
    return predictor().fit_operators(runs, gpus), Intervals.prior()
