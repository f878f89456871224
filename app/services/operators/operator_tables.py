"""Predict columns of one operator per GPU, in chunks that fit the cache."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
from msgspec import structs

from app.engine.engine import Engine
from app.engine.snapshot import GpuRows, Snapshot
from app.errors import MAX_ERRORS, BadInput, FieldError
from app.ops import kinds_of, work_of
from app.runtime.cancellation import check_cancelled
from app.services.operators.machines import joined, together
from app.services.operators.predict_operators import (
    ROOFLINE,
    gpu_warnings,
    require_predictor,
    unsupported_mask,
    unsupported_message,
    uses_slot,
)
from app.stacks.release import software_warnings
from app.steps.predict_rows import CHUNK, OperatorQuery, Surroundings
from app.tables.arrays import Floats, Ints
from app.tables.gpus import GpuTable
from app.tables.ops import OpTable
from app.tables.predictions import BOUNDS, EXTRAPOLATED
from app.wire.operator_columns import Column, Family, Numbers, Problems, Words, read_families, row_count
from app.wire.operator_forms import FORMS, WORD_FIELDS, OperatorTableRequest, TablePrediction, TableResponse, unknown_op
from app.wire.prediction_form import AnsweredBy, Skipped

Path = tuple[str | int, ...]

_BOUND_NAMES = np.array(BOUNDS, dtype=object)


class Times(NamedTuple):
    """Answers row by row, for all repetitions of a row together.

    times_ms    float64 [3, n]: estimate, low, high, milliseconds
    bound       int [n], code into BOUNDS
    unanswered  number of rows at the hardware limit for lack of support
    unmeasured  number of rows without a related measurement
    slotted     whether rows involve more devices than the GPU's link joins
    """

    times_ms: Floats
    bound: Ints
    unanswered: int
    unmeasured: int
    slotted: bool


def json_columns(fields: Iterable[tuple[str, Any]], words: Collection[str] = WORD_FIELDS) -> dict[str, Column]:
    """Return the columns of a decoded body: single cells or lists of them. None means a field was not sent."""
    return {name: _column(value, name in words) for name, value in fields if value is not None}


def _column(value: Any, words: bool) -> Column:
    single = not isinstance(value, list)
    cells = [value] if single else value
    return _words(cells, single) if words else _numbers(cells, single)


def _words(cells: Sequence[str | None], single: bool) -> Words:
    words = tuple(dict.fromkeys(cell for cell in cells if cell is not None))
    code_of: dict[str | None, int] = {word: code for code, word in enumerate(words)}
    code_of[None] = -1
    return Words(words, np.fromiter(map(code_of.__getitem__, cells), dtype=np.intp, count=len(cells)), single)


def _numbers(cells: Sequence[Any], single: bool) -> Numbers:
    try:
        values = np.array(cells, dtype=np.float64)  # None reads as NaN
    except (TypeError, ValueError):  # single figures among pairs
        pairs = [cell if isinstance(cell, list) else (cell, cell) for cell in cells]
        values = np.array(pairs, dtype=np.float64)
    unclear = np.isnan(values if values.ndim == 1 else values[:, 0])
    absent = np.array([cell is None for cell in cells], dtype=np.bool_) if unclear.any() else unclear
    return Numbers(values, absent, single)


def predict_table(snapshot: Snapshot, request: OperatorTableRequest, *, max_rows: int) -> TableResponse:
    """Return the answer to a request. Raises NotFound, BadInput, TooLarge or NotTrained with what to send instead."""
    rows = GpuRows(snapshot)
    targets = rows.targets(request)
    require_predictor(snapshot.engine, rows, request.predictor, targets)
    workload = structs.asdict(request.workload)
    around = Surroundings(*(workload.pop(name) for name in Surroundings._fields))
    family = _family(workload, ("workload",), max_rows // len(targets))
    every = request.gpus == "all"
    targets = joined(rows, targets, around.link, together(family.table), ("workload", "link"), every=every)
    gpus = rows.table()
    query = OperatorQuery(snapshot.engine, family.table, gpus, request.predictor, request.coverage, around)
    predictions, skipped = [], [*rows.skipped]
    for target in targets:
        wrong = unsupported_rows(snapshot.engine, family.table, gpus, target)
        if len(wrong):
            reason = unsupported_message(gpus.ids[target], family.table, int(wrong[0]))
            if not every:
                _refuse_dtypes(request, family, gpus.ids[target], wrong)
            skipped.append(Skipped(gpus.ids[target], reason))
            continue
        times = predict_rows(query, target)
        predictions.append(_render(snapshot, rows, request, target, times))
    return TableResponse(predictions, skipped)


def _family(workload: dict[str, Any], loc: Path, max_rows: int) -> Family:
    """Return the table that the workload describes."""
    if workload["op"] not in FORMS:
        message = unknown_op(workload["op"])
        raise BadInput(message, errors=[FieldError((*loc, "op"), message)])
    columns = json_columns((name, value) for name, value in workload.items() if name != "kind")
    problems = Problems(loc)
    (family,) = read_families(columns, row_count(columns, problems, max_rows=max_rows), problems)
    return family


def _refuse_dtypes(request: OperatorTableRequest, family: Family, gpu: str, rows: Ints) -> NoReturn:
    """Raise BadInput, with the rows if each has a dtype of its own."""
    loc: Path = ("workload", "dtype")
    each = isinstance(structs.asdict(request.workload)["dtype"], list)
    shown = rows[: MAX_ERRORS if each else 1].tolist()
    errors = [FieldError((*loc, k) if each else loc, unsupported_message(gpu, family.table, k)) for k in shown]
    raise BadInput(f"The rows cannot run: {errors[0].msg}.", errors=errors)


def unsupported_rows(engine: Engine, ops: OpTable, gpus: GpuTable, target: int) -> Ints:
    """Return rows in a dtype that the GPU does not support, int [m]."""
    return np.flatnonzero(unsupported_mask(engine, ops, work_of(ops, kinds_of(ops)), gpus, target))


def predict_rows(query: OperatorQuery, target: int) -> Times:
    """Return the times of every row of a query on GPU row `target`."""
    ops, gpus, n = query.requested, query.gpus, len(query.requested)
    times_ms, bound = np.empty((3, n)), np.empty(n, dtype=np.intp)
    unanswered = unmeasured = 0
    slotted = False
    for first in range(0, n, CHUNK):
        check_cancelled()
        part = ops.slice(first, first + CHUNK)
        here = slice(first, first + len(part))
        answer = query._replace(requested=part).predict([target])
        for column, figures in zip(times_ms, (answer.latency_s, answer.low_s, answer.high_s), strict=True):
            np.multiply(figures, part.column("count") * 1e3, out=column[here])
        bound[here] = answer.bound
        unanswered += int((~answer.answered).sum())
        unmeasured += int((answer.support == EXTRAPOLATED).sum())
        slotted |= uses_slot(part, gpus, target)
    return Times(times_ms, bound, unanswered, unmeasured, slotted)


def bound_names(bound: Ints) -> list[str]:
    """Return the names of codes into BOUNDS."""
    names: list[str] = _BOUND_NAMES[bound].tolist()
    return names


def _render(
    snapshot: Snapshot, rows: GpuRows, request: OperatorTableRequest, target: int, times: Times
) -> TablePrediction:
    spec = rows.spec(target)
    n = len(times.bound)
    name = ROOFLINE if times.unanswered == n else request.predictor
    software = structs.asdict(request.workload)["software"]
    middle, low, high = times.times_ms.tolist()
    warnings = gpu_warnings(
        spec,
        request.predictor,
        unanswered=times.unanswered,
        unmeasured=times.unmeasured,
        slotted=times.slotted,
        notes=rows.notes(target),
    )
    warnings += software_warnings(software if isinstance(software, list) else [software])
    return TablePrediction(
        spec.id,
        middle,
        low,
        high,
        bound_names(times.bound),
        request.coverage,
        AnsweredBy(name, snapshot.engine.version_of(name, spec.id)),
        [each.text for each in warnings],
        warnings,
    )
