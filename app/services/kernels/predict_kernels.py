"""Predict kernels: resolve GPUs, check launches, gather evidence, and query the engine once for a batch of requests.

Requests that wait together become rows of one table: the engine costs little more for twenty than for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from app.engine.evidence import KernelQueries, gather_evidence
from app.engine.snapshot import GpuRows, Snapshot
from app.errors import BadInput, FieldError, GpucastError
from app.predictors import BY_NAME, PREDICTORS
from app.predictors.launches import all_runnable
from app.services.kernels.launch import check_launch
from app.services.kernels.render import EngineAnswer, render_predictions
from app.tables.arrays import Ints
from app.tables.gpus import GpuTable
from app.tables.measurements import Measurements
from app.tables.ops import OpTable
from app.wire.kernel_tables import tables_with_measured
from app.wire.prediction_form import Prediction, PredictRequest, PredictResponse, Skipped

_KERNEL_PREDICTORS = tuple(predictor.name for predictor in PREDICTORS)


@dataclass(slots=True)
class ResolvedRequest:
    """A request with resolved GPUs: rows of the batch's GPU table for its targets and for its measured rows."""

    request: PredictRequest
    targets: list[int]
    sources: list[int]
    skipped: list[Skipped] = field(default_factory=list)


class Queries(NamedTuple):
    """Query q is operator row `row[q]` on GPU row `gpu[q]`, int [n] each; `each` holds the queries of every request."""

    each: list[KernelQueries]
    row: Ints
    gpu: Ints


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
    groups: dict[tuple[str, float, float | None], list[int]] = {}
    for position, request in enumerate(requests):
        groups.setdefault((request.predictor, request.coverage, request.power_cap_w), []).append(position)
    answers: dict[int, PredictResponse | GpucastError] = {}
    for (*_, watts), positions in groups.items():
        answered = _predict_group(snapshot.under(watts), [requests[k] for k in positions])
        answers.update(zip(positions, answered, strict=True))
    return [answers[position] for position in range(len(requests))]


def _predict_group(snapshot: Snapshot, requests: Sequence[PredictRequest]) -> list[PredictResponse | GpucastError]:
    """Return the answers of requests with one predictor, coverage and power cap, which is the snapshot's."""
    rows = GpuRows(snapshot)
    served: set[int] = set()
    items = [_resolve(snapshot, rows, request, served) for request in requests]
    resolved = [item for item in items if isinstance(item, ResolvedRequest)]
    sources = [source for item in resolved for source in item.sources]
    tables = Tables(rows.table(), *tables_with_measured([item.request.workload for item in resolved], sources))
    answers = iter(_predict_resolved(snapshot, rows, tables, resolved))
    return [next(answers) if isinstance(item, ResolvedRequest) else item for item in items]


def _resolve(
    snapshot: Snapshot, rows: GpuRows, request: PredictRequest, served: set[int]
) -> ResolvedRequest | GpucastError:
    """Return the request with resolved GPUs, each with a version that answers, or the error.

    `served`: GPU rows that are known to have a version; those of this request are added.
    """
    try:
        _require_kernels(request.predictor)
        targets, measured = rows.targets(request), request.workload.measured
        sources = [rows.row(row.gpu, ("workload", "measured", k, "gpu")) for k, row in enumerate(measured)]
        for target in targets:
            if target not in served:
                snapshot.engine.serving(request.predictor, rows.id(target))
                served.add(target)
    except GpucastError as error:
        return error
    return ResolvedRequest(request, targets, sources, rows.skipped)


def _require_kernels(predictor: str) -> None:
    if predictor in BY_NAME and predictor not in _KERNEL_PREDICTORS:
        message = f"{predictor} does not predict kernels: use one of {', '.join(_KERNEL_PREDICTORS)}"
        raise BadInput(message, errors=[FieldError(("predictor",), message)])


def _queries(resolved: Sequence[ResolvedRequest]) -> Queries:
    """Return the queries of all requests; operator row k is request k's."""
    each: list[KernelQueries] = []
    first = 0
    for item in resolved:
        last = first + len(item.sources)
        each.append(KernelQueries(item.targets, range(first, last)))
        first = last
    row = [k for k, item in enumerate(resolved) for _ in item.targets]
    gpu = [target for item in resolved for target in item.targets]
    return Queries(each, np.array(row, dtype=np.intp), np.array(gpu, dtype=np.intp))


def _launch_errors(tables: Tables, queries: Queries, resolved: Sequence[ResolvedRequest]) -> list[BadInput | None]:
    """Return the error per request whose launch cannot run, which has no target any more.

    With "all", GPUs that cannot run it are skipped instead.
    """
    each = iter(check_launch(tables.ops, tables.gpus, queries.row, queries.gpu))
    return [_launch_error(item, tables.gpus, [next(each) for _ in item.targets]) for item in resolved]


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
        item.targets = []
        return BadInput(f"The kernel cannot run: {errors[0].msg}.", errors=errors)
    item.targets = keep
    return None


def _predict_resolved(
    snapshot: Snapshot, rows: GpuRows, tables: Tables, resolved: Sequence[ResolvedRequest]
) -> list[PredictResponse | BadInput]:
    """Return the error or the engine's answer of every request; operator row k is request k's."""
    queries = _queries(resolved)
    refusals: list[BadInput | None] = [None] * len(resolved)
    if not all_runnable(tables.ops, tables.gpus, queries.row, queries.gpu):
        refusals = _launch_errors(tables, queries, resolved)
        queries = _queries(resolved)
    predictions = _query_engine(snapshot, rows, tables, queries, [item.request for item in resolved])
    return [
        refusal or PredictResponse(answer, item.skipped)
        for refusal, answer, item in zip(refusals, predictions, resolved, strict=True)
    ]


def _query_engine(
    snapshot: Snapshot, rows: GpuRows, tables: Tables, queries: Queries, requests: Sequence[PredictRequest]
) -> list[list[Prediction]]:
    """Return the predictions of every request."""
    if not len(queries.row):
        return [[] for _ in requests]
    evidence = gather_evidence(snapshot.engine.kernels, tables.ops, queries.each, tables.measured)
    answer = snapshot.engine.predict(
        tables.ops,
        tables.gpus,
        queries.row,
        queries.gpu,
        predictor=requests[0].predictor,
        coverage=requests[0].coverage,
        evidence=evidence,
    )
    done = EngineAnswer(
        snapshot.engine, rows, tables.gpus, tables.ops, queries.row, queries.gpu, tables.measured, answer
    )
    return render_predictions(
        done, [(request, each.targets) for request, each in zip(requests, queries.each, strict=True)]
    )
