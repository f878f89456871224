"""Compiled code made ready before the first caller needs it."""

from __future__ import annotations

import msgspec

from app.errors import GpucastError
from app.predictors import OPERATOR_PREDICTORS, PREDICTORS
from app.services.gpu_rows import Snapshot
from app.services.operator_requests import OPERATORS_EXAMPLE, OperatorsRequest
from app.services.operators import predict_operators
from app.services.predict import predict
from app.services.prediction_form import PredictRequest
from app.services.workloads import KERNEL_EXAMPLE


def _warm_operators(snapshot: Snapshot) -> None:
    workload = OPERATORS_EXAMPLE["workload"]
    for predictor in OPERATOR_PREDICTORS:
        request = {"gpu": snapshot.engine.gpus.ids[0], "workload": workload, "predictor": predictor.name}
        predict_operators(snapshot, msgspec.convert(request, OperatorsRequest), max_rows=len(workload["operators"]))


def warm(snapshot: Snapshot) -> None:
    """Answer the example request by every predictor that can: compiles once per installation, then loads."""
    _warm_operators(snapshot)
    for predictor in PREDICTORS:
        request = {"gpu": snapshot.engine.gpus.ids[0], "workload": KERNEL_EXAMPLE, "predictor": predictor.name}
        try:
            predict(snapshot, msgspec.convert(request, PredictRequest))
        except GpucastError:  # not trained, or a catalogue without the example's GPUs: nothing that stops a start
            continue
