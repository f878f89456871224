"""Predictions from requests: GPUs found, launches checked, evidence gathered, the engine asked once for all of them.

Requests that wait together are rows of one table: the engine costs little more for twenty than for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from app.errors import BadInput, FieldError, GpucastError
from app.services.evidence import Wanted, gather
from app.services.gpu_rows import GpuRows, Snapshot
from app.services.launch import check_launch
from app.services.prediction_form import PredictRequest, PredictResponse, Skipped
from app.services.render import Finished, rendered
from app.services.workloads import kernel_table, measured_table
from app.tables.gpus import GpuTable
from app.tables.ops import OpTable


@dataclass(slots=True)
class Asked:
    """A request whose GPUs are found: rows of the batch's GPU table, of its targets and of its measured rows."""

    request: PredictRequest
    targets: list[int]
    sources: list[int]
    skipped: list[Skipped] = field(default_factory=list)


def predict(snapshot: Snapshot, request: PredictRequest) -> PredictResponse:
    """Answer a request; NotFound, BadInput or NotTrained say what to send instead."""
    (answer,) = predict_many(snapshot, [request])
    if isinstance(answer, GpucastError):
        raise answer
    return answer


def predict_many(snapshot: Snapshot, requests: Sequence[PredictRequest]) -> list[PredictResponse | GpucastError]:
    """Answer every request, or say why not, in order; what is wrong with one does not touch the others."""
    groups: dict[tuple[str, float], list[int]] = {}
    for position, request in enumerate(requests):
        groups.setdefault((request.predictor, request.coverage), []).append(position)
    answers: dict[int, PredictResponse | GpucastError] = {}
    for positions in groups.values():
        answers.update(zip(positions, _group(snapshot, [requests[k] for k in positions]), strict=True))
    return [answers[position] for position in range(len(requests))]


def _group(snapshot: Snapshot, requests: Sequence[PredictRequest]) -> list[PredictResponse | GpucastError]:
    """Requests of one predictor and coverage."""
    rows = GpuRows(snapshot)
    answers: list[PredictResponse | GpucastError | Asked] = [_found(snapshot, rows, request) for request in requests]
    asked = [one for one in answers if isinstance(one, Asked)]
    gpus, ops = rows.table(), kernel_table([one.request.workload for one in asked])
    refusals = _refusals(ops, gpus, asked)
    runs = [k for k, refusal in enumerate(refusals) if refusal is None]
    if len(runs) < len(asked):
        ops = ops.take(np.array(runs, dtype=np.intp))
    found = iter(_answered(snapshot, rows, gpus, ops, [asked[k] for k in runs]))
    checked = iter(refusals)
    return [(next(checked) or next(found)) if isinstance(one, Asked) else one for one in answers]


def _found(snapshot: Snapshot, rows: GpuRows, request: PredictRequest) -> Asked | GpucastError:
    """Every GPU that the request names, and a version that answers for each target."""
    try:
        targets = rows.targets(request)
        measured = enumerate(request.workload.measured)
        sources = [rows.row(row.gpu, ("workload", "measured", k, "gpu")) for k, row in measured]
        for target in targets:
            snapshot.engine.serving(request.predictor, rows.id(target))
    except GpucastError as error:
        return error
    return Asked(request, targets, sources)


def _refusals(ops: OpTable, gpus: GpuTable, asked: Sequence[Asked]) -> list[BadInput | None]:
    """Why a launch cannot run; of "all", GPUs that cannot are left out instead."""
    i = np.array([k for k, one in enumerate(asked) for _ in one.targets], dtype=np.intp)
    j = np.array([target for one in asked for target in one.targets], dtype=np.intp)
    problems = check_launch(ops, gpus, i, j)
    if not any(problems):
        return [None] * len(asked)
    each = iter(problems)
    return [_refused(one, gpus, [next(each) for _ in one.targets]) for one in asked]


def _refused(one: Asked, gpus: GpuTable, problems: Sequence[Sequence[FieldError]]) -> BadInput | None:
    workload = one.request.workload
    rows = zip(one.sources, workload.measured, strict=True)
    shown = {source for source, row in rows if (row.dtype or workload.dtype) == workload.dtype}
    keep: list[int] = []
    errors: list[FieldError] = []
    for gpu, broken in zip(one.targets, problems, strict=True):
        real = [error for error in broken if error.loc != ("dtype",) or gpu not in shown]
        if real:
            one.skipped.append(Skipped(gpus.ids[gpu], "; ".join(error.msg for error in real)))
            errors += [FieldError(("workload", *error.loc), error.msg) for error in real]
        else:
            keep.append(gpu)
    if errors and one.request.gpus != "all":
        return BadInput(f"The kernel cannot run: {errors[0].msg}.", errors=errors)
    one.targets = keep
    return None


def _answered(
    snapshot: Snapshot, rows: GpuRows, gpus: GpuTable, ops: OpTable, asked: Sequence[Asked]
) -> list[PredictResponse]:
    """The engine's answer to requests that can run; `asked[k]` is operator row k."""
    targets = [target for one in asked for target in one.targets]
    if not targets:
        return [PredictResponse([], one.skipped) for one in asked]
    request = asked[0].request
    given = measured_table([one.request.workload for one in asked], [source for one in asked for source in one.sources])
    wanted, first = [], 0
    for one in asked:
        wanted.append(Wanted(one.targets, range(first, first + len(one.sources))))
        first += len(one.sources)
    i = np.array([k for k, one in enumerate(asked) for _ in one.targets], dtype=np.intp)
    j = np.array(targets, dtype=np.intp)
    evidence = gather(snapshot.engine.kernels, ops, wanted, given)
    answer = snapshot.engine.predict(
        ops, gpus, i, j, predictor=request.predictor, coverage=request.coverage, evidence=evidence
    )
    predictions = iter(
        rendered(
            Finished(snapshot.engine, rows, gpus, ops, i, j, given, answer),
            [(one.request, one.targets) for one in asked],
        )
    )
    return [PredictResponse([next(predictions) for _ in one.targets], one.skipped) for one in asked]
