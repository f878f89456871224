"""Estimate the work of POST /predict before it is done: little is done on the event loop, the rest in threads."""

from __future__ import annotations

from app.wire.kernel_workload import GpuRef
from app.wire.operators.operators_form import OperatorsRequest
from app.wire.predict_body import Request
from app.wire.prediction_form import MAX_GPUS, PredictRequest

# Work in pairs of a GPU and a measurement of a kernel, each some 5 us. So many take less than 5 ms, for which the event
# loop can be held; longer bodies take as long to read.
INLINE_PAIRS = 512
INLINE_BYTES = 65_536
# An operator costs as much as 4 pairs, one in detail (`explanation`) as 32, and so does a GPU's inline specification.
_OPERATOR, _DETAIL, _SPECIFICATION = 4, 32, 32
_FEW = 16  # measurements are short work even with a specification each


def is_short(request: Request) -> bool:
    """Return whether the answer takes less than 5 ms. Networks and columns may take longer, and saving always does."""
    if request.save:
        return False
    if isinstance(request, PredictRequest):
        return _kernel_pairs(request) <= INLINE_PAIRS
    if isinstance(request, OperatorsRequest):
        each = _DETAIL if request.detail else _OPERATOR
        return _gpus(request) * len(request.workload.operators) * each + _specification(request.gpu) <= INLINE_PAIRS
    return False


def _kernel_pairs(request: PredictRequest) -> int:
    measured = request.workload.measured
    if request.gpus is None and len(measured) < _FEW:
        return _FEW
    pairs = _gpus(request) * (1 + len(measured)) + _specification(request.gpu)
    return pairs + sum(_specification(row.gpu) for row in measured) if pairs <= INLINE_PAIRS else pairs


def _gpus(request: Request) -> int:
    if request.gpus is None:
        return 1
    if request.gpus == "all":
        return MAX_GPUS
    return sum(max(_specification(gpu), 1) for gpu in request.gpus)


def _specification(gpu: GpuRef | None) -> int:
    return _SPECIFICATION if isinstance(gpu, dict) else 0
