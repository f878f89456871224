"""Predict a list of operators that run one after another: each distinct row once, times added up.

Latency of the list = sum over rows of count x latency of the row. Errors are fully correlated within a group of the
breakdown (a GPU that is slow at one matrix product is slow at the next), so interval ends add up there; groups are
independent, so their deviations add in quadrature.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from msgspec import structs

from app.bands.band import ends_of_sum
from app.engine.engine import Engine
from app.engine.snapshot import GpuRows, Snapshot
from app.errors import MAX_ERRORS, BadInput, FieldError, TooLarge
from app.ops import MIXED_FIELDS, OPS, kinds_of, work_of
from app.ops.figures import Work
from app.predictors import BY_NAME, DEFAULT, OPERATOR_PREDICTORS
from app.predictors.base import calibrated
from app.predictors.links import beyond_link_domain
from app.predictors.operator_digests import Distinct, deduplicate
from app.predictors.roofline import peaks
from app.runtime.cancellation import check_cancelled
from app.services.operators.explanations import explanations
from app.services.operators.machines import placed
from app.stacks.release import software_warnings
from app.steps.predict_rows import OperatorQuery, Surroundings
from app.steps.run_formats import as_run
from app.tables.arrays import Bools, Floats, Ints
from app.tables.gpus import COLUMN_INDEX, DEVICES_PER_NODE, MOST_IN_A_MACHINE, GpuSpec, GpuTable
from app.tables.ops import DTYPE_CODE, DTYPES, OpTable
from app.tables.predictions import BOUNDS, EXTRAPOLATED, SUPPORTS, Predictions
from app.warning_codes import CodedWarning, warning
from app.wire.names import did_you_mean
from app.wire.operator_forms import FORM_BY_TYPE, REQUEST_NAMES, Form, OperatorsRequest
from app.wire.prediction_form import (
    AnsweredBy,
    Interval,
    MemoryUse,
    OperatorRow,
    Prediction,
    PredictResponse,
    Share,
    Skipped,
)

ROOFLINE = "roofline"
# Most rows of a request with `detail`: some 2 s of work and an answer of 25 MB, 40 times what a row costs without.
MAX_DETAIL_ROWS = 20_000
_DOMAIN, _LOC = COLUMN_INDEX["link_domain_gpus"], ("workload", "operators")
_SERVING = tuple(predictor.name for predictor in OPERATOR_PREDICTORS)


def check_rows(operators: int, gpus: int, *, max_rows: int, detail: bool) -> None:
    """Raise TooLarge if a request has too many operators times GPUs."""
    most = min(max_rows, MAX_DETAIL_ROWS) if detail else max_rows
    if operators * gpus > most:
        what = "rows with detail" if detail else "rows"
        raise TooLarge(f"At most {most:,} {what} are accepted at once; got {operators:,} operators on {gpus:,} GPUs.")


def require_predictor(engine: Engine, rows: GpuRows, predictor: str, targets: list[int]) -> None:
    """Raise BadInput or NotTrained unless the predictor answers for operators on every target."""
    versions = [engine.serving(predictor, rows.id(target)) for target in targets] if predictor in _SERVING else []
    if not versions:
        near = "" if predictor in BY_NAME else did_you_mean(predictor, _SERVING)
        message = f"{predictor[:100]!r} does not predict operators{near}: use one of {', '.join(_SERVING)}"
        raise BadInput(message, errors=[FieldError(("predictor",), message)])


def rows_without_dtype(ops: OpTable, work: Work, gpus: GpuTable, target: int) -> Bools:
    """Return rows that compute in a dtype which the data sheet of the GPU lacks, bool [n]."""
    missing: Bools = np.isnan(peaks(gpus)[:, target])[ops.dtype] & (work.flops > 0)
    return missing


def unsupported_mask(engine: Engine, ops: OpTable, work: Work, gpus: GpuTable, target: int) -> Bools:
    """Return rows in a dtype that the GPU lacks, except dtypes measured to run there, bool [n]."""
    missing = rows_without_dtype(ops, work, gpus, target)
    if missing.any():
        served = engine.serving(DEFAULT, gpus.ids[target]).predictor
        if calibrated(served):
            missing &= ~served.ran_on(gpus.ids[target])[ops.kind, ops.dtype]
    return missing


def unsupported_message(gpu: str, ops: OpTable, row: int) -> str:
    """Return why a row cannot run."""
    return f"{gpu} does not compute in {DTYPES[ops.dtype[row]]}"


def unsupported_dtypes(gpu: str, ops: OpTable, rows: Ints) -> str:
    """Return why a network cannot run: all unsupported dtypes of these rows (an FP8 network also uses others)."""
    names = dict.fromkeys(DTYPES[code] for code in sorted(ops.dtype[rows].tolist(), reverse=True))
    return f"{gpu} does not compute in {' nor '.join(names)}"


def supported_targets(
    engine: Engine,
    ops: OpTable,
    work: Work,
    gpus: GpuTable,
    targets: Sequence[int],
    refusal: Callable[[str, Ints], BadInput] | None,
    *,
    assumed: bool = False,
) -> tuple[list[int], list[Skipped]]:
    """Return targets that support every dtype, and the skipped ones. With `refusal`, the first skipped one is raised.

    refusal  (GPU id, rows that it cannot run) -> error
    assumed  whether nobody asked for the dtypes, so that GPUs run others in their place
    """
    keep, skipped = [], []
    for target in targets:
        rows, gpu = as_run(engine, ops, gpus, target) if assumed else ops, gpus.ids[target]
        missing = np.flatnonzero(unsupported_mask(engine, rows, work, gpus, target))
        if not len(missing):
            keep.append(target)
        elif refusal is not None:
            raise refusal(gpu, missing)
        else:
            skipped.append(Skipped(gpu, unsupported_dtypes(gpu, ops, missing)))
    return keep, skipped


def uses_slot(ops: OpTable, gpus: GpuTable, target: int) -> bool:
    """Return whether rows involve more devices than the GPU's link joins."""
    if not gpus.values[_DOMAIN, target] <= MOST_IN_A_MACHINE:
        return False
    return beyond_link_domain(ops, gpus, np.arange(len(ops)), np.full(len(ops), target)) is not None


def gpu_warnings(
    spec: GpuSpec,
    predictor: str,
    *,
    unanswered: int,
    unmeasured: int,
    slotted: bool,
    notes: Sequence[CodedWarning],
    together: int = 1,
) -> list[CodedWarning]:
    """Return what to know before using the numbers of one GPU.

    `unanswered` rows have the hardware limit for lack of support; `unmeasured` ones have no related measurement;
    `slotted`: some involve more devices than its link joins; `notes`: those of its row (GpuRows); `together`: devices
    of a machine.
    """
    messages = []
    if predictor == ROOFLINE:
        text = "this is the hardware limit, not an expected time: operators seldom reach it"
        messages.append(warning("hardware_limit", text))
    elif unanswered:
        text = f"{predictor} cannot answer for {unanswered} distinct rows: those are at the hardware limit"
        messages.append(warning("unanswered", text))
    elif unmeasured:
        text = f"{unmeasured} distinct rows have no related measurement: they follow from the GPU's figures alone"
        messages.append(warning("evidence_unknown", text))
    if slotted:
        link, slot = spec.link_type or "link", (spec.slot_bandwidth_bytes_per_s or 0.0) / 1e9
        more = f"larger exchanges go over its slot, {slot:g} GB/s"
        text = f"the {link} of {spec.id} joins {spec.link_domain_gpus} devices: {more}"
        messages.append(warning("link_exceeded", text))
    if together > (largest := max(spec.link_domain_gpus or 0, DEVICES_PER_NODE)):
        text = f"{together} devices on one machine: usual ones with {spec.id} have {largest}; send parallelism.nodes"
        messages.append(warning("machine_exceeded", text))
    return [*messages, *notes]


def read_operators(operators: Sequence[Any]) -> Distinct:
    """Return operators (structs of ROW_FORMS) as a table. Raises BadInput that names wrong rows and fields."""
    kind, dtype = np.empty(len(operators), dtype=np.intp), np.empty(len(operators), dtype=np.intp)
    figures: dict[int, list[list[float]]] = {}
    places: dict[int, list[int]] = {}
    columns: dict[int, list[int]] = {}
    errors: list[FieldError] = []
    for k, operator in enumerate(operators):
        form = FORM_BY_TYPE[type(operator)]
        kind[k], dtype[k] = form.code, DTYPE_CODE[operator.dtype]
        figures.setdefault(form.code, []).append(_figures(form, operator, k, errors))
        places.setdefault(form.code, []).append(k)
        columns.setdefault(form.code, [MIXED_FIELDS[name] for name in form.op.fields])
    _refuse(errors)
    dims = np.full((len(MIXED_FIELDS), len(operators)), np.nan)
    for code, rows in figures.items():
        dims[np.ix_(columns[code], places[code])] = np.array(rows).T
    table = OpTable(kind, dtype, np.zeros(len(operators), dtype=np.intp), MIXED_FIELDS, dims)
    _check(table, places)
    return deduplicate(table)


def _figures(form: Form, operator: Any, k: int, errors: list[FieldError]) -> list[float]:
    """Return one row in the order of its operator's columns."""
    row: list[float] = []
    for field, value in zip(form.fields, structs.astuple(operator), strict=False):  # the dtype comes last
        if value is None:
            row += [field.dim.default] * len(field.dim.columns)  # type: ignore[list-item]
        elif isinstance(value, str):
            try:
                numbers = field.number(value)  # type: ignore[misc]
                row += numbers if isinstance(numbers, tuple) else (numbers,)
            except ValueError as error:
                errors.append(FieldError((*_LOC, k, field.name), str(error)))
                row += [np.nan] * len(field.dim.columns)
        elif isinstance(value, list):
            row += value
        else:
            row += [value] * len(field.dim.columns)
    return row


def _check(table: OpTable, places: dict[int, list[int]]) -> None:
    """Check the rules between fields, operator by operator."""
    errors = []
    for code, rows in places.items():
        check = OPS[code].check
        for broken in [] if check is None else check(table.take(np.array(rows))):
            bad = np.flatnonzero(broken.rows)[:MAX_ERRORS]
            errors += [
                FieldError((*_LOC, rows[q], REQUEST_NAMES.get(broken.field, broken.field)), broken.message)
                for q in bad.tolist()
            ]
    _refuse(errors)


def _refuse(errors: list[FieldError]) -> None:
    if errors:
        errors.sort(key=lambda error: error.loc[len(_LOC)])
        raise BadInput.of(errors)


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
    workload = request.workload
    operators = workload.placed if workload.nodes else workload.operators
    rows = GpuRows(snapshot)
    targets = rows.targets(request)
    check_rows(len(operators), len(targets), max_rows=max_rows, detail=request.detail)
    require_predictor(snapshot.engine, rows, request.predictor, targets)
    named = [operator.software for operator in operators if operator.software]
    chain = _chain(read_operators(operators), software_warnings(named) if named else [])
    if workload.link or workload.implementation:
        targets = placed(rows, targets, request, chain.distinct.table)
    gpus = rows.table()
    table, work = chain.distinct.table, chain.work
    refusal = None if request.gpus == "all" else partial(_refusal, chain.distinct)
    targets, skipped = supported_targets(snapshot.engine, table, work, gpus, targets, refusal)
    skipped += rows.skipped
    if not targets:
        return PredictResponse([], skipped)
    u = len(chain.runs)
    around = Surroundings(workload.network_bytes_per_s, workload.link, workload.host)
    query = OperatorQuery(snapshot.engine, table, gpus, request.predictor, request.coverage, around)
    answer = query.predict(targets)
    each = [answer] if len(targets) == 1 else [answer.take(slice(k * u, k * u + u)) for k in range(len(targets))]
    predictions = [
        _prediction(query, rows, request, chain, target, of_gpu) for target, of_gpu in zip(targets, each, strict=True)
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
    spec = rows.spec(target)
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
        notes=rows.notes(target),
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
