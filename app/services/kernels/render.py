"""Render answers of the engine as predictions of the HTTP contract."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from app.engine.engine import Engine
from app.engine.snapshot import GpuRows
from app.predictors.launches import resident_blocks
from app.services.kernels.kernel_warnings import answer_warnings, measurement_warnings
from app.tables.arrays import Ints
from app.tables.gpus import GpuSpec, GpuTable
from app.tables.measurements import Measurements
from app.tables.ops import OpTable
from app.tables.predictions import BOUNDS, SUPPORTS, Predictions
from app.wire.prediction_form import AnsweredBy, Interval, MemoryUse, OperatorRow, Prediction, PredictRequest, Share

_ROOFLINE = "roofline"


class EngineAnswer(NamedTuple):
    """A query of the engine and its answer: operator row `i[q]` on GPU row `j[q]`, with `measured` rows."""

    engine: Engine
    rows: GpuRows
    gpus: GpuTable
    ops: OpTable
    i: Ints
    j: Ints
    measured: Measurements
    answer: Predictions


def render_predictions(
    result: EngineAnswer, requests: Sequence[tuple[PredictRequest, Sequence[int]]]
) -> list[list[Prediction]]:
    """Return the predictions of every request; `requests` holds each request with its GPU rows, a query each."""
    shared = measurement_warnings([request.workload for request, _ in requests], result.gpus, result.measured)
    answer = result.answer
    predictors: dict[tuple[int, bool], AnsweredBy] = {}
    columns = zip(
        (answer.latency_s * 1e3).tolist(),
        (answer.low_s * 1e3).tolist(),
        (answer.high_s * 1e3).tolist(),
        answer.bound.tolist(),
        answer.support.tolist(),
        answer.group.tolist(),
        answer.answered.tolist(),
        strict=True,
    )
    answers: list[list[Prediction]] = []
    q = 0
    for (request, targets), shared_warnings in zip(requests, shared, strict=True):
        coverage, required = request.coverage, request.workload.working_set_bytes
        predictions: list[Prediction] = []
        for target in targets:
            middle, low, high, bound, support, group, answered = next(columns)
            spec = result.rows.spec(target)
            predictor = predictors.get((target, answered))
            if predictor is None:
                predictor = predictors[target, answered] = _answered_by(result, request, spec, answered)
            own = answer_warnings(
                request, spec, group, support, answered, uncatalogued=result.rows.is_uncatalogued(target)
            )
            warnings = [*shared_warnings, *own]
            predictions.append(
                Prediction(
                    spec.id,
                    middle,
                    Interval(low, high, coverage),
                    BOUNDS[bound],  # type: ignore[arg-type]
                    predictor,
                    SUPPORTS[support],  # type: ignore[arg-type]
                    MemoryUse(required, spec.memory_bytes, required <= spec.memory_bytes),
                    [Share("kernel", middle, 1.0, 1)],
                    [each.text for each in warnings] if warnings else [],
                    warnings,
                    [_operator(result, request, q)] if request.detail else None,
                )
            )
            q += 1
        answers.append(predictions)
    return answers


def _answered_by(result: EngineAnswer, request: PredictRequest, spec: GpuSpec, answered: bool) -> AnsweredBy:
    name = request.predictor if answered else _ROOFLINE
    return AnsweredBy(name, result.engine.version_of(name, spec.id))


def _operator(result: EngineAnswer, request: PredictRequest, q: int) -> OperatorRow:
    """Return the kernel of a request in detail."""
    workload, answer = request.workload, result.answer
    resident = resident_blocks(result.ops, result.gpus, result.i[q : q + 1], result.j[q : q + 1])
    return OperatorRow(
        op="kernel",
        name=workload.name,
        latency_ms=float(answer.latency_s[q]) * 1e3,
        low_ms=float(answer.low_s[q]) * 1e3,
        high_ms=float(answer.high_s[q]) * 1e3,
        limit_ms=float(answer.limit_s[q]) * 1e3,
        bound=BOUNDS[answer.bound[q]],
        flops=workload.flops,
        bytes=workload.bytes,
        blocks_per_sm=float(resident.blocks[0]),
    )
