"""A list of operators that run one after another: each distinct row predicted once, the times added up.

Latency of the list = sum over rows of count x latency of the row. Within a group of the breakdown the rows' errors
are taken as one (a GPU that is slow at one matrix product is slow at the next), so there the ends of the intervals add
up as the middles do; groups err independently of one another, so their deviations from the middle add up in squares.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from app.engine.gpu_rows import GpuRows, Snapshot
from app.engine.operator_rows import Distinct, read_operators
from app.errors import MAX_ERRORS, BadInput, FieldError, TooLarge
from app.ops import OPS
from app.ops.figures import Work
from app.ops.kinds import kinds_of, work_of
from app.ops.stacks import doubts
from app.services.operators.answers import (
    ROOFLINE,
    lacks,
    lacks_among,
    over_slot,
    require_predictor,
    runnable,
    warnings,
)
from app.services.operators.between_nodes import Asking, answered_on
from app.services.operators.explanations import explanations
from app.tables.arrays import Floats, Ints
from app.tables.gpus import GpuTable
from app.tables.ops import DTYPES
from app.tables.predictions import BOUNDS, EXTRAPOLATED, SUPPORTS, Predictions
from app.wire.operators.operators_form import OperatorsRequest
from app.wire.prediction_form import (
    AnsweredBy,
    Interval,
    MemoryUse,
    OperatorRow,
    Prediction,
    PredictResponse,
    Share,
)


@dataclass(frozen=True, slots=True)
class Chain:
    """Operators asked for, ready to be added up.

    distinct  the rows to predict
    work      of each distinct row, one repetition
    runs      float64 [u], how often each distinct row runs in all
    group     int [u], into `groups`
    groups    names of the breakdown's lines
    doubts    warnings about how it was asked, whatever the GPU
    """

    distinct: Distinct
    work: Work
    runs: Floats
    group: Ints
    groups: list[str]
    doubts: list[str]


def predict_operators(snapshot: Snapshot, request: OperatorsRequest, *, max_rows: int) -> PredictResponse:
    """Answer a request; NotFound, BadInput, TooLarge or NotTrained say what to send instead."""
    operators = request.workload.operators
    rows = GpuRows(snapshot)
    targets = rows.targets(request)
    if len(operators) * len(targets) > max_rows:
        asked_for = f"{len(operators):,} operators on {len(targets)} GPUs"
        raise TooLarge(f"At most {max_rows:,} rows are taken at once; {asked_for} are more.")
    require_predictor(snapshot.engine, rows, request.predictor, targets)
    asked = _chain(read_operators(operators), doubts(operator.software for operator in operators))
    gpus = rows.table()
    table, work = asked.distinct.table, asked.work
    refusal = None if request.gpus == "all" else partial(_refusal, asked.distinct)
    targets, skipped = runnable(snapshot.engine, table, work, gpus, targets, refusal)
    if not targets:
        return PredictResponse([], skipped)
    u = len(asked.runs)
    answer = answered_on(snapshot.engine, table, gpus, targets, predictor=request.predictor, coverage=request.coverage)
    predictions = [
        _prediction(snapshot, rows, gpus, request, asked, target, _part(answer, k * u, u))
        for k, target in enumerate(targets)
    ]
    return PredictResponse(predictions, skipped)


def _chain(distinct: Distinct, unheard: list[str]) -> Chain:
    table = distinct.table
    kinds = kinds_of(table)
    groups = list(dict.fromkeys(kind.op.group for kind in kinds))
    group = np.empty(len(table), dtype=np.intp)
    for kind in kinds:
        group[kind.rows] = groups.index(kind.op.group)
    runs = np.bincount(distinct.row, weights=distinct.repeats, minlength=len(table)).astype(np.float64)
    return Chain(distinct, work_of(table, kinds), runs, group, groups, unheard)


def _refusal(distinct: Distinct, gpu: str, missing: Ints) -> BadInput:
    """Which operators a GPU has no dtype for, by their places in the request."""
    wrong = np.flatnonzero(np.isin(distinct.row, missing))[:MAX_ERRORS].tolist()
    rows = [int(row) for row in distinct.row[wrong]]
    errors = [
        FieldError(("workload", "operators", k, "dtype"), lacks(gpu, distinct.table, row))
        for k, row in zip(wrong, rows, strict=True)
    ]
    return BadInput(f"The operators cannot run: {lacks_among(gpu, distinct.table, missing)}.", errors=errors)


def _part(answer: Predictions, first: int, n: int) -> Predictions:
    """The rows of one GPU."""
    return Predictions(*(getattr(answer, name)[first : first + n] for name in Predictions.__dataclass_fields__))


def _prediction(
    snapshot: Snapshot,
    rows: GpuRows,
    gpus: GpuTable,
    request: OperatorsRequest,
    asked: Chain,
    target: int,
    answer: Predictions,
) -> Prediction:
    """The list on one GPU."""
    spec = rows.spec(target)
    sums = [_sum(asked, column * 1e3) for column in (answer.latency_s, answer.low_s, answer.high_s)]
    middle = sums[0].sum()
    below, above = (float(np.sqrt(((end - sums[0]) ** 2).sum())) for end in sums[1:])
    bound = np.bincount(answer.bound, weights=asked.runs * answer.latency_s).argmax()
    required = float(asked.work.working_set_bytes.max())
    unanswered = int((~answer.answered).sum())
    name = ROOFLINE if unanswered == len(answer.answered) else request.predictor
    alone = int((answer.support == EXTRAPOLATED).sum())
    words = warnings(
        spec,
        request.predictor,
        unanswered=unanswered,
        alone=alone,
        slotted=over_slot(asked.distinct.table, gpus, target),
        guest=rows.is_uncatalogued(target),
    )
    words += asked.doubts
    if required > spec.memory_bytes:
        words.append(f"the largest working set does not fit in the memory of {spec.id}")
    return Prediction(
        spec.id,
        float(middle),
        Interval(float(middle) - below, float(middle) + above, request.coverage),
        BOUNDS[bound],  # type: ignore[arg-type]
        AnsweredBy(name, snapshot.engine.version_of(name, spec.id)),
        SUPPORTS[answer.support.max()],  # type: ignore[arg-type]
        MemoryUse(required, spec.memory_bytes, required <= spec.memory_bytes),
        _shares(asked, sums[0]),
        words,
        _details(snapshot, gpus, request, asked, target, answer) if request.detail else None,
    )


def _sum(asked: Chain, figures: Floats) -> Floats:
    """Sum over the repetitions of every row, per group."""
    total = np.bincount(asked.group, weights=asked.runs * figures, minlength=len(asked.groups))
    return total.astype(np.float64)


def _shares(asked: Chain, latency_ms: Floats) -> list[Share]:
    """The breakdown, the largest first."""
    share = latency_ms / (latency_ms.sum() or 1.0)  # a collective of one device takes no time
    runs = np.bincount(asked.group, weights=asked.runs, minlength=len(asked.groups))
    order = np.argsort(-share, kind="stable").tolist()
    return [Share(asked.groups[g], float(latency_ms[g]), float(share[g]), int(runs[g])) for g in order]


def _details(
    snapshot: Snapshot, gpus: GpuTable, request: OperatorsRequest, asked: Chain, target: int, answer: Predictions
) -> list[OperatorRow]:
    """One row per operator in the order asked, each of all its repetitions together."""
    asking = Asking(snapshot.engine, asked.distinct.table, gpus, request.predictor, request.coverage)
    explanation = explanations(asking, target, answer)
    row, count, table = asked.distinct.row, asked.distinct.repeats, asked.distinct.table
    times = (answer.latency_s, answer.low_s, answer.high_s, answer.limit_s)
    summed = zip(
        row.tolist(),
        count.tolist(),
        *((figure[row] * count * 1e3).tolist() for figure in times),
        *((figure[row] * count).tolist() for figure in (asked.work.flops, asked.work.bytes)),
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
            group=asked.groups[asked.group[q]],
            dtype=DTYPES[table.dtype[q]],
            count=runs,
            support=SUPPORTS[answer.support[q]],
            predictor=request.predictor if answer.answered[q] else ROOFLINE,
            explanation=explanation[q],
        )
        for q, runs, latency, low, high, limit, flops, moved in summed
    ]
