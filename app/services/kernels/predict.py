"""Predictions from requests: GPUs found, launches checked, evidence gathered, the engine asked once for all of them.

Requests that wait together are rows of one table: the engine costs little more for twenty than for one.
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
from app.predictors.launches.sound import all_run
from app.services.kernels.launch import check_launch
from app.services.kernels.render import Finished, rendered
from app.tables.gpus import GpuTable
from app.tables.measurements import Measurements
from app.tables.ops import OpTable
from app.wire.kernel_workload import tables_with_measured
from app.wire.prediction_form import Prediction, PredictRequest, PredictResponse, Skipped

_OF_KERNELS = tuple(predictor.name for predictor in PREDICTORS)


@dataclass(slots=True)
class Asked:
    """A request whose GPUs are found: rows of the batch's GPU table, of its targets and of its measured rows."""

    request: PredictRequest
    targets: list[int]
    sources: list[int]
    skipped: list[Skipped] = field(default_factory=list)


class Tables(NamedTuple):
    """A batch as tables: operator row k is request k's kernel, `given` holds all measured rows, in order."""

    gpus: GpuTable
    ops: OpTable
    given: Measurements


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
    gpus = rows.table()
    sources = [source for one in asked for source in one.sources]
    ops, given = tables_with_measured([one.request.workload for one in asked], sources)
    refusals = _refusals(ops, gpus, asked)
    answered = iter(_answered(snapshot, rows, Tables(gpus, ops, given), [*zip(asked, refusals, strict=True)]))
    return [next(answered) if isinstance(one, Asked) else one for one in answers]


def _found(snapshot: Snapshot, rows: GpuRows, request: PredictRequest) -> Asked | GpucastError:
    """Every GPU that the request names, and a version that answers for each target."""
    try:
        _require_kernels(request.predictor)
        targets = rows.targets(request)
        measured = enumerate(request.workload.measured)
        sources = [rows.row(row.gpu, ("workload", "measured", k, "gpu")) for k, row in measured]
        for target in targets:
            snapshot.engine.serving(request.predictor, rows.id(target))
    except GpucastError as error:
        return error
    return Asked(request, targets, sources)


def _require_kernels(predictor: str) -> None:
    if predictor in BY_NAME and predictor not in _OF_KERNELS:
        message = f"{predictor} does not predict kernels: use one of {', '.join(_OF_KERNELS)}"
        raise BadInput(message, errors=[FieldError(("predictor",), message)])


def _refusals(ops: OpTable, gpus: GpuTable, asked: Sequence[Asked]) -> list[BadInput | None]:
    """Why a launch cannot run; of "all", GPUs that cannot are left out instead."""
    i = np.array([k for k, one in enumerate(asked) for _ in one.targets], dtype=np.intp)
    j = np.array([target for one in asked for target in one.targets], dtype=np.intp)
    if all_run(ops, gpus, i, j):
        return [None] * len(asked)
    each = iter(check_launch(ops, gpus, i, j))
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
    snapshot: Snapshot, rows: GpuRows, tables: Tables, checked: Sequence[tuple[Asked, BadInput | None]]
) -> list[PredictResponse | BadInput]:
    """The refusal, or the engine's answer, of every request; `checked[k]` is operator row k."""
    wanted, i, first = [], list[int](), 0
    for row, (one, refusal) in enumerate(checked):
        last = first + len(one.sources)
        targets = one.targets if refusal is None else ()
        wanted.append(KernelQueries(targets, range(first, last)))
        i.extend([row] * len(targets))
        first = last
    predictions = iter(_asked_of_engine(snapshot, rows, tables, i, wanted, [one.request for one, _ in checked]))
    return [
        refusal or PredictResponse([next(predictions) for _ in one.targets], one.skipped) for one, refusal in checked
    ]


def _asked_of_engine(
    snapshot: Snapshot,
    rows: GpuRows,
    tables: Tables,
    i: Sequence[int],
    wanted: Sequence[KernelQueries],
    requests: Sequence[PredictRequest],
) -> list[Prediction]:
    """Predictions of all queries: operator row `i[q]`, GPU rows as `wanted`."""
    if not i:
        return []
    row, gpu = np.array(i), np.array([target for one in wanted for target in one.targets])
    evidence = gather_evidence(snapshot.engine.kernels, tables.ops, wanted, tables.given)
    answer = snapshot.engine.predict(
        tables.ops,
        tables.gpus,
        row,
        gpu,
        predictor=requests[0].predictor,
        coverage=requests[0].coverage,
        evidence=evidence,
    )
    done = Finished(snapshot.engine, rows, tables.gpus, tables.ops, row, gpu, tables.given, answer)
    return rendered(done, [(request, one.targets) for request, one in zip(requests, wanted, strict=True)])
