"""Predict kernels: resolve GPUs, check launches, gather evidence, and query the engine once for a batch of requests.

Requests that wait together become rows of one table: the engine costs little more for twenty than for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from app.engine.evidence import KernelQueries, gather_evidence
from app.engine.gpu_rows import GpuRows, Snapshot
from app.errors import BadInput, FieldError, GpucastError
from app.predictors import BY_NAME, PREDICTORS
from app.predictors.launches.validity import all_runnable
from app.services.kernels.launch import check_launch
from app.services.kernels.render import EngineAnswer, render_predictions
from app.tables.gpus import GpuTable
from app.tables.measurements import Measurements
from app.tables.ops import OpTable
from app.wire.kernel_workload import tables_with_measured
from app.wire.prediction_form import Prediction, PredictRequest, PredictResponse, Skipped

_KERNEL_PREDICTORS = tuple(predictor.name for predictor in PREDICTORS)


@dataclass(slots=True)
class ResolvedRequest:
    """A request with resolved GPUs: rows of the batch's GPU table for its targets and for its measured rows."""

    request: PredictRequest
    targets: list[int]
    sources: list[int]
    skipped: list[Skipped] = field(default_factory=list)


class Tables(NamedTuple):
    """A batch as tables: operator row k is request k's kernel; `measured` holds all measured rows, in order."""

    gpus: GpuTable
    ops: OpTable
    measured: Measurements


def predict_kernel(snapshot: Snapshot, request: PredictRequest) -> PredictResponse:
    """Return the answer to one request. Raises NotFound, BadInput or NotTrained with what to send instead."""
    (answer,) = predict_kernels(snapshot, [request])
    if isinstance(answer, GpucastError):
        raise answer
    return answer


def predict_kernels(snapshot: Snapshot, requests: Sequence[PredictRequest]) -> list[PredictResponse | GpucastError]:
    """Return the answer or the error of every request, in order. Errors of one request do not affect the others."""
    groups: dict[tuple[str, float], list[int]] = {}
    for position, request in enumerate(requests):
        groups.setdefault((request.predictor, request.coverage), []).append(position)
    answers: dict[int, PredictResponse | GpucastError] = {}
    for positions in groups.values():
        answers.update(zip(positions, _predict_group(snapshot, [requests[k] for k in positions]), strict=True))
    return [answers[position] for position in range(len(requests))]


def _predict_group(snapshot: Snapshot, requests: Sequence[PredictRequest]) -> list[PredictResponse | GpucastError]:
    """Return the answers of requests with one predictor and coverage."""
    rows = GpuRows(snapshot)
    answers: list[PredictResponse | GpucastError | ResolvedRequest] = [
        _resolve(snapshot, rows, request) for request in requests
    ]
    resolved = [item for item in answers if isinstance(item, ResolvedRequest)]
    gpus = rows.table()
    sources = [source for item in resolved for source in item.sources]
    ops, given = tables_with_measured([item.request.workload for item in resolved], sources)
    refusals = _launch_errors(ops, gpus, resolved)
    answered = iter(
        _predict_resolved(snapshot, rows, Tables(gpus, ops, given), [*zip(resolved, refusals, strict=True)])
    )
    return [next(answered) if isinstance(item, ResolvedRequest) else item for item in answers]


def _resolve(snapshot: Snapshot, rows: GpuRows, request: PredictRequest) -> ResolvedRequest | GpucastError:
    """Return the request with resolved GPUs, each with a version that answers, or the error."""
    try:
        _require_kernels(request.predictor)
        targets = rows.targets(request)
        measured = enumerate(request.workload.measured)
        sources = [rows.row(row.gpu, ("workload", "measured", k, "gpu")) for k, row in measured]
        for target in targets:
            snapshot.engine.serving(request.predictor, rows.id(target))
    except GpucastError as error:
        return error
    return ResolvedRequest(request, targets, sources)


def _require_kernels(predictor: str) -> None:
    if predictor in BY_NAME and predictor not in _KERNEL_PREDICTORS:
        message = f"{predictor} does not predict kernels: use one of {', '.join(_KERNEL_PREDICTORS)}"
        raise BadInput(message, errors=[FieldError(("predictor",), message)])


def _launch_errors(ops: OpTable, gpus: GpuTable, resolved: Sequence[ResolvedRequest]) -> list[BadInput | None]:
    """Return the error per request whose launch cannot run; with "all", such GPUs are skipped instead."""
    i = np.array([k for k, item in enumerate(resolved) for _ in item.targets], dtype=np.intp)
    j = np.array([target for item in resolved for target in item.targets], dtype=np.intp)
    if all_runnable(ops, gpus, i, j):
        return [None] * len(resolved)
    each = iter(check_launch(ops, gpus, i, j))
    return [_launch_error(item, gpus, [next(each) for _ in item.targets]) for item in resolved]


def _launch_error(item: ResolvedRequest, gpus: GpuTable, problems: Sequence[Sequence[FieldError]]) -> BadInput | None:
    workload = item.request.workload
    rows = zip(item.sources, workload.measured, strict=True)
    shown = {source for source, row in rows if (row.dtype or workload.dtype) == workload.dtype}
    keep: list[int] = []
    errors: list[FieldError] = []
    for gpu, broken in zip(item.targets, problems, strict=True):
        real = [error for error in broken if error.loc != ("dtype",) or gpu not in shown]
        if real:
            item.skipped.append(Skipped(gpus.ids[gpu], "; ".join(error.msg for error in real)))
            errors += [FieldError(("workload", *error.loc), error.msg) for error in real]
        else:
            keep.append(gpu)
    if errors and item.request.gpus != "all":
        return BadInput(f"The kernel cannot run: {errors[0].msg}.", errors=errors)
    item.targets = keep
    return None


def _predict_resolved(
    snapshot: Snapshot, rows: GpuRows, tables: Tables, checked: Sequence[tuple[ResolvedRequest, BadInput | None]]
) -> list[PredictResponse | BadInput]:
    """Return the error or the engine's answer of every request; `checked[k]` is operator row k."""
    queries, i, first = [], list[int](), 0
    for row, (item, refusal) in enumerate(checked):
        last = first + len(item.sources)
        targets = item.targets if refusal is None else ()
        queries.append(KernelQueries(targets, range(first, last)))
        i.extend([row] * len(targets))
        first = last
    predictions = iter(_query_engine(snapshot, rows, tables, i, queries, [item.request for item, _ in checked]))
    return [
        refusal or PredictResponse([next(predictions) for _ in item.targets], item.skipped) for item, refusal in checked
    ]


def _query_engine(
    snapshot: Snapshot,
    rows: GpuRows,
    tables: Tables,
    i: Sequence[int],
    queries: Sequence[KernelQueries],
    requests: Sequence[PredictRequest],
) -> list[Prediction]:
    """Return the predictions of all queries: operator row `i[q]`, GPU rows as in `queries`."""
    if not i:
        return []
    row, gpu = np.array(i), np.array([target for item in queries for target in item.targets])
    evidence = gather_evidence(snapshot.engine.kernels, tables.ops, queries, tables.measured)
    answer = snapshot.engine.predict(
        tables.ops,
        tables.gpus,
        row,
        gpu,
        predictor=requests[0].predictor,
        coverage=requests[0].coverage,
        evidence=evidence,
    )
    done = EngineAnswer(snapshot.engine, rows, tables.gpus, tables.ops, row, gpu, tables.measured, answer)
    return render_predictions(done, [(request, item.targets) for request, item in zip(requests, queries, strict=True)])
