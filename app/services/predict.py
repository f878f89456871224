"""A prediction from a request: GPUs found, the launch checked, evidence gathered, the engine asked, words added."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.errors import BadInput, FieldError
from app.predictors.occupancy import resident_blocks
from app.services.advice import advise
from app.services.evidence import bearing
from app.services.gpu_rows import GpuRows, Snapshot
from app.services.launch import check_launch
from app.services.prediction_form import (
    AnsweredBy,
    Interval,
    MemoryUse,
    OperatorRow,
    Prediction,
    PredictRequest,
    PredictResponse,
    Share,
    Skipped,
)
from app.services.workloads import evidence_for, kernel_table
from app.tables.gpus import GpuTable
from app.tables.measurements import Evidence, Measurements
from app.tables.ops import OpTable
from app.tables.predictions import BOUNDS, SUPPORTS, Predictions

Ints = NDArray[np.intp]
_ROOFLINE = "roofline"


class Query(NamedTuple):
    """A request in the engine's terms: one operator row on the GPU rows `targets` of `gpus`."""

    request: PredictRequest
    rows: GpuRows
    gpus: GpuTable
    ops: OpTable
    targets: Ints
    given: Measurements
    skipped: list[Skipped]


def predict(snapshot: Snapshot, request: PredictRequest) -> PredictResponse:
    """Answer a request; NotFound, BadInput or NotTrained say what to send instead."""
    query = understand(snapshot, request)
    if not len(query.targets):
        return PredictResponse([], query.skipped)
    i = np.zeros(len(query.targets), dtype=np.intp)
    evidence = bearing(snapshot.engine.kernels, query.ops, query.targets, query.given)
    answer = snapshot.engine.predict(
        query.ops,
        query.gpus,
        i,
        query.targets,
        predictor=request.predictor,
        coverage=request.coverage,
        evidence=evidence,
    )
    return PredictResponse(_rendered(snapshot, query, answer, evidence), query.skipped)


def understand(snapshot: Snapshot, request: PredictRequest) -> Query:
    """Find every GPU the request names and refuse a launch that none of the wanted ones can run."""
    rows = GpuRows(snapshot)
    targets = _targets(snapshot, request, rows)
    ops = kernel_table((request.workload,))
    given = evidence_for(request.workload, rows.row, loc=("workload",))
    gpus = rows.table()
    runs, skipped = _runnable(ops, gpus, np.array(targets), given, all_asked=request.gpus == "all")
    return Query(request, rows, gpus, ops, runs, given, skipped)


def _targets(snapshot: Snapshot, request: PredictRequest, rows: GpuRows) -> list[int]:
    if (request.gpu is None) == (request.gpus is None):
        message = 'send either gpu (one name or specification) or gpus (a list of them, or "all")'
        raise BadInput(message, errors=[FieldError(("gpu",), message)])
    if request.gpu is not None:
        return [rows.row(request.gpu, ("gpu",))]
    if request.gpus == "all":
        return list(range(len(snapshot.engine.gpus)))
    return [rows.row(ref, ("gpus", k)) for k, ref in enumerate(request.gpus or ())]


def _runnable(
    ops: OpTable, gpus: GpuTable, wanted: Ints, given: Measurements, *, all_asked: bool
) -> tuple[Ints, list[Skipped]]:
    """The wanted GPUs that can run the launch; one asked for by name that cannot is BadInput."""
    problems = check_launch(ops, gpus, np.zeros(len(wanted), dtype=np.intp), wanted)
    if not any(problems):
        return wanted, []
    shown = set(given.gpu[given.ops.dtype == ops.dtype[0]].tolist())
    keep, skipped, errors = [], [], []
    for gpu, broken in zip(wanted.tolist(), problems, strict=True):
        real = [error for error in broken if error.loc != ("dtype",) or gpu not in shown]
        errors += [FieldError(("workload", *error.loc), error.msg) for error in real]
        if real:
            skipped.append(Skipped(gpus.ids[gpu], "; ".join(error.msg for error in real)))
        else:
            keep.append(gpu)
    if errors and not all_asked:
        raise BadInput(f"The kernel cannot run: {errors[0].msg}.", errors=errors)
    return np.array(keep, dtype=np.intp), skipped


def _rendered(snapshot: Snapshot, query: Query, answer: Predictions, evidence: Evidence) -> list[Prediction]:
    request, engine = query.request, snapshot.engine
    advice = advise(query.rows, query.gpus, query.targets, request, answer, evidence)
    details: list[list[OperatorRow] | None] = [None] * len(query.targets)
    if request.detail:
        details = [[row] for row in _operators(query, answer)]
    predictions = []
    columns = zip(
        query.targets.tolist(),
        (answer.latency_s * 1e3).tolist(),
        (answer.low_s * 1e3).tolist(),
        (answer.high_s * 1e3).tolist(),
        answer.bound.tolist(),
        answer.support.tolist(),
        answer.answered.tolist(),
        advice,
        details,
        strict=True,
    )
    for row, middle, low, high, bound, support, answered, words, detail in columns:
        spec = query.rows.spec(row)
        name = request.predictor if answered else _ROOFLINE
        required = request.workload.working_set_bytes
        predictions.append(
            Prediction(
                gpu=spec.id,
                latency_ms=middle,
                interval_ms=Interval(low, high, request.coverage),
                bound=BOUNDS[bound],  # type: ignore[arg-type]
                predictor=AnsweredBy(name, engine.version_of(name, spec.id)),
                support=SUPPORTS[support],  # type: ignore[arg-type]
                memory=MemoryUse(required, spec.memory_bytes, required <= spec.memory_bytes),
                breakdown=[Share("kernel", middle, 1.0, 1)],
                warnings=words,
                operators=detail,
            )
        )
    return predictions


def _operators(query: Query, answer: Predictions) -> list[OperatorRow]:
    """The one operator of a kernel request in detail, per GPU."""
    workload = query.request.workload
    resident = resident_blocks(query.ops, query.gpus, np.zeros(len(query.targets), dtype=np.intp), query.targets)
    return [
        OperatorRow(
            op="kernel",
            name=workload.name,
            latency_ms=float(answer.latency_s[q]) * 1e3,
            low_ms=float(answer.low_s[q]) * 1e3,
            high_ms=float(answer.high_s[q]) * 1e3,
            limit_ms=float(answer.limit_s[q]) * 1e3,
            bound=BOUNDS[answer.bound[q]],
            flops=workload.flops,
            bytes=workload.bytes,
            blocks_per_sm=float(resident.blocks[q]),
        )
        for q in range(len(query.targets))
    ]
