"""Predict a list of operators that run one after another: each distinct row once, times added up.

Latency of the list = sum over rows of count x latency of the row. Errors are fully correlated within a group of the
breakdown (a GPU that is slow at one matrix product is slow at the next), so interval ends add up there; groups are
independent, so their deviations add in quadrature.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from app.bands.band import ends_of_sum
from app.engine.snapshot import GpuRows, Snapshot
from app.errors import MAX_ERRORS, BadInput, FieldError
from app.ops import OPS, kinds_of, work_of
from app.ops.figures import Work
from app.predictors.operator_digests import Distinct
from app.runtime.cancellation import check_cancelled
from app.services.operators.common import (
    ROOFLINE,
    check_rows,
    gpu_warnings,
    read_operators,
    require_predictor,
    supported_targets,
    unsupported_dtypes,
    unsupported_message,
    uses_slot,
)
from app.services.operators.explanations import explanations
from app.stacks.release import software_warnings
from app.steps.predict_rows import OperatorQuery
from app.tables.arrays import Floats, Ints
from app.tables.ops import DTYPES
from app.tables.predictions import BOUNDS, EXTRAPOLATED, SUPPORTS, Predictions
from app.warning_codes import CodedWarning, warning
from app.wire.operator_forms import OperatorsRequest
from app.wire.prediction_form import AnsweredBy, Interval, MemoryUse, OperatorRow, Prediction, PredictResponse, Share


@dataclass(frozen=True, slots=True)
class Chain:
    """Distinct operators of a request, ready to be added up.

    distinct  the rows to predict
    work      per distinct row, one repetition
    runs      float64 [u], how often each distinct row runs in total
    group     int [u], into `groups`
    groups    names of the breakdown's lines
    notes     warnings about the request, for all GPUs
    """

    distinct: Distinct
    work: Work
    runs: Floats
    group: Ints
    groups: list[str]
    notes: list[CodedWarning]


def predict_operators(snapshot: Snapshot, request: OperatorsRequest, *, max_rows: int) -> PredictResponse:
    """Return the answer to a request. Raises NotFound, BadInput, TooLarge or NotTrained with what to send instead."""
    operators = request.workload.operators
    rows = GpuRows(snapshot)
    targets = rows.targets(request)
    check_rows(len(operators), len(targets), max_rows=max_rows, detail=request.detail)
    require_predictor(snapshot.engine, rows, request.predictor, targets)
    named = [operator.software for operator in operators if operator.software]
    chain = _chain(read_operators(operators), software_warnings(named) if named else [])
    gpus = rows.table()
    table, work = chain.distinct.table, chain.work
    refusal = None if request.gpus == "all" else partial(_refusal, chain.distinct)
    targets, skipped = supported_targets(snapshot.engine, table, work, gpus, targets, refusal)
    if not targets:
        return PredictResponse([], skipped)
    u = len(chain.runs)
    query = OperatorQuery(snapshot.engine, table, gpus, request.predictor, request.coverage)
    answer = query.predict(targets)
    predictions = [
        _prediction(query, rows, request, chain, target, answer.take(slice(k * u, k * u + u)))
        for k, target in enumerate(targets)
    ]
    return PredictResponse(predictions, skipped)


def _chain(distinct: Distinct, notes: list[CodedWarning]) -> Chain:
    table = distinct.table
    kinds = kinds_of(table)
    groups = list(dict.fromkeys(kind.op.group for kind in kinds))
    group = np.empty(table.kind.size, dtype=np.intp)
    for kind in kinds:
        group[kind.rows] = groups.index(kind.op.group)
    runs = np.bincount(distinct.row, weights=distinct.repeats, minlength=table.kind.size).astype(np.float64)
    return Chain(distinct, work_of(table, kinds), runs, group, groups, notes)


def _refusal(distinct: Distinct, gpu: str, missing: Ints) -> BadInput:
    """Return an error with the places of operators whose dtype the GPU lacks."""
    wrong = np.flatnonzero(np.isin(distinct.row, missing))[:MAX_ERRORS].tolist()
    rows = [int(row) for row in distinct.row[wrong]]
    errors = [
        FieldError(("workload", "operators", k, "dtype"), unsupported_message(gpu, distinct.table, row))
        for k, row in zip(wrong, rows, strict=True)
    ]
    return BadInput(f"The operators cannot run: {unsupported_dtypes(gpu, distinct.table, missing)}.", errors=errors)


def _prediction(
    query: OperatorQuery,
    rows: GpuRows,
    request: OperatorsRequest,
    chain: Chain,
    target: int,
    answer: Predictions,
) -> Prediction:
    """Return the prediction of the list on one GPU."""
    check_cancelled()
    spec, uncatalogued = rows.spec(target), rows.is_uncatalogued(target)
    sums = [_sum(chain, column * 1e3) for column in (answer.latency_s, answer.low_s, answer.high_s)]
    middle = sums[0].sum()
    low, high = ends_of_sum(*sums)
    bound = np.bincount(answer.bound, weights=chain.runs * answer.latency_s).argmax()
    required = float(chain.work.working_set_bytes.max())
    unanswered = int((~answer.answered).sum())
    name = ROOFLINE if unanswered == len(answer.answered) else request.predictor
    unmeasured = int((answer.support == EXTRAPOLATED).sum())
    messages = gpu_warnings(
        spec,
        request.predictor,
        unanswered=unanswered,
        unmeasured=unmeasured,
        slotted=uses_slot(query.requested, query.gpus, target),
        uncatalogued=uncatalogued,
    )
    messages += chain.notes
    if required > spec.memory_bytes:
        text = f"the largest working set does not fit in the memory of {spec.id}"
        messages.append(warning("memory_exceeded", text))
    return Prediction(
        spec.id,
        float(middle),
        Interval(low, high, request.coverage),
        BOUNDS[bound],  # type: ignore[arg-type]
        AnsweredBy(name, query.engine.version_of(name, spec.id)),
        SUPPORTS[answer.support.max()],  # type: ignore[arg-type]
        MemoryUse(required, spec.memory_bytes, required <= spec.memory_bytes),
        _shares(chain, sums[0]),
        [message.text for message in messages],
        messages,
        _details(query, chain, target, answer) if request.detail else None,
    )


def _sum(chain: Chain, figures: Floats) -> Floats:
    """Return the sum over all repetitions, per group."""
    total = np.bincount(chain.group, weights=chain.runs * figures, minlength=len(chain.groups))
    return total.astype(np.float64)


def _shares(chain: Chain, latency_ms: Floats) -> list[Share]:
    """Return the breakdown, largest first."""
    share = latency_ms / (latency_ms.sum() or 1.0)  # a collective on one device takes no time
    runs = np.bincount(chain.group, weights=chain.runs, minlength=len(chain.groups))
    order = np.argsort(-share, kind="stable").tolist()
    return [Share(chain.groups[g], float(latency_ms[g]), float(share[g]), int(runs[g])) for g in order]


def _details(query: OperatorQuery, chain: Chain, target: int, answer: Predictions) -> list[OperatorRow]:
    """Return one row per operator in request order, each for all its repetitions together."""
    explanation = explanations(query, target, answer)
    row, count, table = chain.distinct.row, chain.distinct.repeats, chain.distinct.table
    times = (answer.latency_s, answer.low_s, answer.high_s, answer.limit_s)
    summed = zip(
        row.tolist(),
        count.tolist(),
        *((figure[row] * count * 1e3).tolist() for figure in times),
        *((figure[row] * count).tolist() for figure in (chain.work.flops, chain.work.bytes)),
        strict=True,
    )
    return [
        OperatorRow(
            op=OPS[table.kind[q]].name,
            latency_ms=latency,
            low_ms=low,
            high_ms=high,
            limit_ms=limit,
            bound=BOUNDS[answer.bound[q]],
            flops=flops,
            bytes=moved,
            group=chain.groups[chain.group[q]],
            dtype=DTYPES[table.dtype[q]],
            count=runs,
            support=SUPPORTS[answer.support[q]],
            predictor=query.predictor if answer.answered[q] else ROOFLINE,
            explanation=explanation[q],
        )
        for q, runs, latency, low, high, limit, flops, moved in summed
    ]
