"""Render predictions of kernels in the HTTP contract's terms, with warnings about what they rest on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from app.bands.groups import NO_EVIDENCE, RELATED
from app.coefficients import Coefficients
from app.engine.engine import Engine
from app.engine.snapshot import GpuRows
from app.predictors.launches import none_below_limit, resident_blocks
from app.predictors.roofline import hardware_limit
from app.tables.arrays import Ints
from app.tables.gpus import GpuSpec, GpuTable
from app.tables.measurements import Measurements
from app.tables.ops import OpTable
from app.tables.predictions import BOUNDS, EXTRAPOLATED, SUPPORTS, Predictions
from app.warning_codes import CodedWarning, warning
from app.wire.kernel_workload import KernelWorkload
from app.wire.prediction_form import AnsweredBy, Interval, MemoryUse, OperatorRow, Prediction, PredictRequest, Share

_SERVICE = Coefficients("service")
# Tolerance for clocks above the data sheet and rounded counts.
LIMIT_TOLERANCE = _SERVICE.number("limit_tolerance")
# A launch whose threads share one operation or byte among so many has counts in another unit.
THREADS_PER_COUNT = _SERVICE.number("threads_per_count")
_HARDWARE_LIMIT = warning("hardware_limit", "this is the hardware limit, not an expected time: kernels seldom reach it")
_NO_EVIDENCE = warning(
    "evidence_unknown", "no measurement of this kernel is known: expect the time anywhere in the wide interval"
)
_RELATED = warning("evidence_related", "only measurements of other kernels inform this prediction")
# Times so often the hardware limit are in another unit, if they are longer than a second.
_BEYOND_USE, _LONG_S = 10_000, 1.0
_EXTRAPOLATED = warning("extrapolated", "the launch lies outside the measured range: extrapolated")


def answer_warnings(
    request: PredictRequest, spec: GpuSpec, group: int, support: int, answered: bool, *, notes: list[CodedWarning]
) -> list[CodedWarning]:
    """Return the warnings of one query; `notes` are those of its GPU."""
    warnings: list[CodedWarning] = []
    if not answered:
        text = f"{request.predictor} cannot answer for this launch: this is the hardware limit"
        warnings.append(warning("unanswered", text))
    elif request.predictor == "roofline":
        warnings.append(_HARDWARE_LIMIT)
    elif group == NO_EVIDENCE:
        warnings.append(_NO_EVIDENCE)
    elif group == RELATED:
        warnings.append(_RELATED)
    elif support == EXTRAPOLATED:
        warnings.append(_EXTRAPOLATED)
    warnings += unit_warnings(request.workload)
    if request.workload.working_set_bytes > spec.memory_bytes:
        text = f"the working set does not fit in the memory of {spec.id}"
        warnings.append(warning("memory_exceeded", text))
    return [*warnings, *notes]


def unit_warnings(workload: KernelWorkload) -> list[CodedWarning]:
    """Return warnings about counts so small for the grid that their unit is wrong: GFLOP, or MB."""
    few = workload.blocks * workload.threads_per_block / THREADS_PER_COUNT
    counts = (("flops", workload.flops, "operations, not GFLOP"), ("bytes", workload.bytes, "bytes, not MB or GB"))
    return [
        warning(
            "unit_doubtful",
            f"{name} is {count:g} for {workload.blocks * workload.threads_per_block:,.0f} threads: it counts {unit}",
        )
        for name, count, unit in counts
        if 0.0 < count < few
    ]


def measurement_warnings(
    workloads: Sequence[KernelWorkload], gpus: GpuTable, measured: Measurements
) -> list[list[CodedWarning]]:
    """Return, per workload, warnings about impossible measured times and about sizes whose counts were not overridden.

    `measured` holds the measured rows of all workloads, in order.
    """
    if not len(measured):
        return [[] for _ in workloads]
    if none_below_limit(measured, gpus, LIMIT_TOLERANCE) and measured.latency_s.max() <= _LONG_S:
        return [_same_counts(workload) for workload in workloads]
    limits = hardware_limit(measured.ops, gpus, np.arange(len(measured)), measured.gpu).latency_s.tolist()
    each = zip([gpus.ids[gpu] for gpu in measured.gpu.tolist()], limits, strict=True)
    return [
        _implausible(workload, list(islice(each, len(workload.measured)))) + _same_counts(workload)
        for workload in workloads
    ]


def _implausible(workload: KernelWorkload, limits: Sequence[tuple[str, float]]) -> list[CodedWarning]:
    """Return warnings about times below the hardware limit, seconds, or so far above that their unit is wrong."""
    slow = [
        warning(
            "measured_implausible",
            f"measured[{k}]: {row.latency_ms:.6g} ms is {row.latency_ms / (1e3 * limit):.2g} times the hardware limit "
            f"of {gpu}, {limit * 1e3:.6g} ms: latency_ms is in milliseconds",
        )
        for k, (row, (gpu, limit)) in enumerate(zip(workload.measured, limits, strict=True))
        if row.latency_ms > 1e3 * max(_LONG_S, _BEYOND_USE * limit)
    ]
    return slow + [
        warning(
            "measured_below_limit",
            f"measured[{k}]: {row.latency_ms:.6g} ms is more than {LIMIT_TOLERANCE:.0%} under the hardware limit of "
            f"{gpu}, {limit * 1e3:.6g} ms: check the time, FLOPs, bytes and working set",
        )
        for k, (row, (gpu, limit)) in enumerate(zip(workload.measured, limits, strict=True))
        if row.latency_ms < (1 - LIMIT_TOLERANCE) * limit * 1e3
    ]


def _same_counts(workload: KernelWorkload) -> list[CodedWarning]:
    return [
        warning(
            "measured_counts_missing",
            f"measured[{k}]: another size with the same flops and bytes; send those of that size too",
        )
        for k, row in enumerate(workload.measured)
        if row.size is not None and row.size != workload.size and row.flops is None and row.bytes is None
    ]


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
        doubted = any(each.code == "measured_implausible" for each in shared_warnings)
        predictions: list[Prediction] = []
        for target in targets:
            middle, low, high, bound, support, group, answered = next(columns)
            spec = result.rows.spec(target)
            predictor = predictors.get((target, answered))
            if predictor is None:
                predictor = predictors[target, answered] = _answered_by(result, request, spec, answered)
            if doubted:
                support = EXTRAPOLATED
            own = answer_warnings(request, spec, group, support, answered, notes=result.rows.notes(target))
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
