"""Columns of one operator, predicted for each GPU in chunks that stay in the cache."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
from msgspec import structs

from app.engine.engine import Engine
from app.engine.gpu_rows import GpuRows, Snapshot
from app.errors import MAX_ERRORS, BadInput, FieldError
from app.ops.kinds import kinds_of, work_of
from app.ops.stacks import doubts
from app.services.operators.answers import ROOFLINE, lacks, over_slot, refused, require_predictor, warnings
from app.services.operators.between_nodes import answered_on
from app.tables.arrays import Floats, Ints
from app.tables.gpus import GpuTable
from app.tables.ops import OpTable
from app.tables.predictions import BOUNDS, EXTRAPOLATED
from app.wire.operators.operator_columns import Column, Family, Numbers, Problems, Words, read_families, row_count
from app.wire.operators.operators_form import OperatorTableRequest, TablePrediction, TableResponse
from app.wire.operators.row_forms import FORMS, WORD_FIELDS, unknown_op
from app.wire.prediction_form import AnsweredBy, Skipped

Path = tuple[str | int, ...]

# Not a power of two: columns as far apart share few lines of a cache.
CHUNK = 16_000
_BOUND_NAMES = np.array(BOUNDS, dtype=object)


class Times(NamedTuple):
    """Answers row for row, of all repetitions of a row together.

    times_ms    float64 [3, n]: middle, low, high, milliseconds
    bound       int [n], code into BOUNDS
    unanswered  rows at the hardware limit because the predictor had no support
    alone       rows without a measurement behind them
    slotted     whether rows are of more devices than the GPU's link joins
    """

    times_ms: Floats
    bound: Ints
    unanswered: int
    alone: int
    slotted: bool


def json_columns(given: Iterable[tuple[str, Any]], words: Collection[str] = WORD_FIELDS) -> dict[str, Column]:
    """Columns of a decoded body: single cells or lists of them; fields that are None were not sent."""
    return {name: _column(value, name in words) for name, value in given if value is not None}


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
    """Answer a request; NotFound, BadInput, TooLarge or NotTrained say what to send instead."""
    rows = GpuRows(snapshot)
    targets = rows.targets(request)
    require_predictor(snapshot.engine, rows, request.predictor, targets)
    family = _family(structs.asdict(request.workload), ("workload",), max_rows // len(targets))
    gpus = rows.table()
    predictions, skipped = [], []
    for target in targets:
        wrong = lacking_rows(snapshot.engine, family.table, gpus, target)
        if len(wrong):
            reason = lacks(gpus.ids[target], family.table, int(wrong[0]))
            if request.gpus != "all":
                _refuse_dtypes(request, family, gpus.ids[target], wrong)
            skipped.append(Skipped(gpus.ids[target], reason))
            continue
        times = times_of(snapshot.engine, gpus, family.table, target, request.predictor, request.coverage)
        predictions.append(_rendered(snapshot, rows, request, target, times))
    return TableResponse(predictions, skipped)


def _family(workload: dict[str, Any], loc: Path, max_rows: int) -> Family:
    """The one table that the workload describes."""
    if workload["op"] not in FORMS:
        message = unknown_op(workload["op"])
        raise BadInput(message, errors=[FieldError((*loc, "op"), message)])
    columns = json_columns((name, value) for name, value in workload.items() if name != "kind")
    problems = Problems(loc)
    (family,) = read_families(columns, row_count(columns, problems, max_rows=max_rows), problems)
    return family


def _refuse_dtypes(request: OperatorTableRequest, family: Family, gpu: str, rows: Ints) -> NoReturn:
    """BadInput that names the rows, where each has a dtype of its own."""
    loc: Path = ("workload", "dtype")
    each = isinstance(structs.asdict(request.workload)["dtype"], list)
    shown = rows[: MAX_ERRORS if each else 1].tolist()
    errors = [FieldError((*loc, k) if each else loc, lacks(gpu, family.table, k)) for k in shown]
    raise BadInput(f"The rows cannot run: {errors[0].msg}.", errors=errors)


def lacking_rows(engine: Engine, ops: OpTable, gpus: GpuTable, target: int) -> Ints:
    """Rows that the GPU cannot run for want of their dtype, int [m]."""
    return np.flatnonzero(refused(engine, ops, work_of(ops, kinds_of(ops)), gpus, target))


def times_of(engine: Engine, gpus: GpuTable, ops: OpTable, target: int, predictor: str, coverage: float) -> Times:
    """Every row of `ops` on GPU row `target`."""
    n = len(ops)
    times_ms, bound = np.empty((3, n)), np.empty(n, dtype=np.intp)
    unanswered = alone = 0
    slotted = False
    for first in range(0, n, CHUNK):
        part = piece_of(ops, first, first + CHUNK)
        here = slice(first, first + len(part))
        answer = answered_on(engine, part, gpus, [target], predictor=predictor, coverage=coverage)
        for column, figures in zip(times_ms, (answer.latency_s, answer.low_s, answer.high_s), strict=True):
            np.multiply(figures, part.column("count") * 1e3, out=column[here])
        bound[here] = answer.bound
        unanswered += int((~answer.answered).sum())
        alone += int((answer.support == EXTRAPOLATED).sum())
        slotted |= over_slot(part, gpus, target)
    return Times(times_ms, bound, unanswered, alone, slotted)


def piece_of(ops: OpTable, first: int, stop: int) -> OpTable:
    """Rows from `first` to before `stop`; in one piece, for compiled code is made for that layout."""
    here = slice(first, stop)
    dims = np.ascontiguousarray(ops.dims[:, here])
    return OpTable(ops.kind[here], ops.dtype[here], ops.label[here], ops.fields, dims)


def bound_names(bound: Ints) -> list[str]:
    """Codes into BOUNDS in words."""
    names: list[str] = _BOUND_NAMES[bound].tolist()
    return names


def _rendered(
    snapshot: Snapshot, rows: GpuRows, request: OperatorTableRequest, target: int, times: Times
) -> TablePrediction:
    spec = rows.spec(target)
    n = len(times.bound)
    name = ROOFLINE if times.unanswered == n else request.predictor
    guest, named = rows.is_uncatalogued(target), structs.asdict(request.workload)["software"]
    middle, low, high = times.times_ms.tolist()
    return TablePrediction(
        spec.id,
        middle,
        low,
        high,
        bound_names(times.bound),
        request.coverage,
        AnsweredBy(name, snapshot.engine.version_of(name, spec.id)),
        warnings(
            spec,
            request.predictor,
            unanswered=times.unanswered,
            alone=times.alone,
            slotted=times.slotted,
            guest=guest,
        )
        + doubts(named if isinstance(named, list) else [named]),
    )
