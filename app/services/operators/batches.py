"""POST /predict/batch: operator rows in columns, as JSON, an Arrow stream or Parquet; the answer in the same form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from msgspec import structs

from app.engine.gpu_rows import GpuRows, Snapshot
from app.errors import MAX_ERRORS, BadInput, FieldError, NotFound
from app.ops.stacks import doubts
from app.runtime.allocator_trim import LARGE_BODY, trim_allocator
from app.services.operators.answers import ROOFLINE, lacks, require_predictor, warnings
from app.services.operators.batch_files import FILES
from app.services.operators.tables import bound_names, json_columns, lacking_rows, times_of
from app.tables.arrays import Floats, Ints
from app.wire.decoding import decode, decode_plain
from app.wire.json_text import check_json_text
from app.wire.operators.operator_columns import (
    Column,
    Family,
    Problems,
    Words,
    read_families,
    row_count,
    text_to_numbers,
)
from app.wire.operators.operators_form import BATCH_EXAMPLE, BatchResponse, OperatorBatch
from app.wire.prediction_form import AnsweredBy

JSON = "application/json"
MEDIA = (JSON, *FILES)

_DECODER = msgspec.json.Decoder(OperatorBatch)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """What goes for all rows; `gpu` for those that name none of their own."""

    gpu: str | None
    predictor: str
    coverage: float
    max_rows: int


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    """Answers row for row.

    times_ms    float64 [3, n]: middle, low, high, milliseconds
    bound       int [n], code into BOUNDS
    predictors  what answered, by GPU: the roofline where the predictor asked for had no support in any row
    warnings    what to know before acting on them, by GPU
    """

    times_ms: Floats
    bound: Ints
    predictors: dict[str, AnsweredBy]
    warnings: dict[str, list[str]]


def predict_batch(snapshot: Snapshot, body: bytes, media: str, options: BatchOptions) -> bytes:
    """Answer a body of one of MEDIA in the same form; BadInput, NotFound or TooLarge say what to send instead."""
    answer = _bytes(snapshot, body, media, options)
    if len(body) >= LARGE_BODY:
        trim_allocator()
    return answer


def _bytes(snapshot: Snapshot, body: bytes, media: str, options: BatchOptions) -> bytes:
    file = FILES.get(media)
    answer = _answered(snapshot, _json(body) if file is None else file.read(body, options.max_rows), options)
    if file is not None:
        told = {"coverage": options.coverage, "predictors": answer.predictors, "warnings": answer.warnings}
        return file.write(answer.times_ms, answer.bound, msgspec.json.encode(told))
    middle, low, high = answer.times_ms.tolist()
    bound = bound_names(answer.bound)
    response = BatchResponse(middle, low, high, bound, options.coverage, answer.predictors, answer.warnings)
    return msgspec.json.encode(response)


def _json(body: bytes) -> dict[str, Column]:
    """Columns of a JSON body; NaN, which is no JSON, is named with its row by whoever reads the column."""
    check_json_text(body)
    try:
        batch: Any = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        try:
            batch = msgspec.convert(decode_plain(body), OperatorBatch)
        except (msgspec.ValidationError, OverflowError):
            batch = decode(_DECODER, body, example=BATCH_EXAMPLE)
    return json_columns(structs.asdict(batch).items())


def _answered(snapshot: Snapshot, columns: Mapping[str, Column], options: BatchOptions) -> BatchAnswer:
    problems = Problems(())
    n = row_count(columns, problems, max_rows=options.max_rows)
    rows = GpuRows(snapshot)
    target = _targets(rows, columns.get("gpu"), options.gpu, n)
    asked = np.unique(target).tolist()
    require_predictor(snapshot.engine, rows, options.predictor, asked)
    families = read_families({name: column for name, column in columns.items() if name != "gpu"}, n, problems)
    gpus = rows.table()
    times_ms, bound = np.empty((3, n)), np.empty(n, dtype=np.intp)
    counts = {gpu: np.zeros(4, dtype=np.intp) for gpu in asked}  # rows, unanswered, alone, slotted
    for gpu in asked:
        for family in families:
            mine = family if len(asked) == 1 else _on(family, target, gpu)
            if not len(mine.rows):
                continue
            wrong = lacking_rows(snapshot.engine, mine.table, gpus, gpu)
            if len(wrong):
                problems.add("dtype", lacks(gpus.ids[gpu], mine.table, int(wrong[0])), mine.rows[wrong])
                continue
            times = times_of(snapshot.engine, gpus, mine.table, gpu, options.predictor, options.coverage)
            times_ms[:, mine.rows], bound[mine.rows] = times.times_ms, times.bound
            counts[gpu] += (len(mine.rows), times.unanswered, times.alone, times.slotted)
    problems.refuse()
    software, predictors, words = columns.get("software"), {}, {}
    unheard = doubts(software.words) if isinstance(software, Words) else []
    for gpu, (count, unanswered, alone, slotted) in counts.items():
        spec, name = rows.spec(gpu), ROOFLINE if unanswered == count else options.predictor
        predictors[spec.id] = AnsweredBy(name, snapshot.engine.version_of(name, spec.id))
        words[spec.id] = warnings(
            spec,
            options.predictor,
            unanswered=int(unanswered),
            alone=int(alone),
            slotted=bool(slotted),
            guest=rows.is_uncatalogued(gpu),
        )
        words[spec.id] += unheard
    return BatchAnswer(times_ms, bound, predictors, words)


def _targets(rows: GpuRows, column: Column | None, default: str | None, n: int) -> Ints:
    """Row of the GPU table behind every operator row, int [n]."""
    found = np.full(n, np.nan) if column is None else _named(rows, column, n)
    absent = np.isnan(found)
    if absent.any():
        if default is None:
            message = "required: the GPU, as a parameter or a column"
            which = np.flatnonzero(absent)[: MAX_ERRORS if column is not None else 1].tolist()
            errors = [FieldError(("gpu",) if column is None else ("gpu", row), message) for row in which]
            raise BadInput(message, errors=errors)
        found = np.where(absent, rows.row(default, ("gpu",)), found)
    return found.astype(np.intp)


def _named(rows: GpuRows, column: Column, n: int) -> Floats:
    """GPU rows behind the names of a column, NaN where there is none, float64 [n]; NotFound names rows too."""
    problems = Problems(())
    if not isinstance(column, Words):
        problems.refuse_field("gpu", "must be a word: the name of a GPU")

    def number(name: str) -> float:
        try:
            return float(rows.row(name, ("gpu",)))
        except NotFound as error:
            raise ValueError(error.detail) from error

    found = text_to_numbers("gpu", column, number, None if column.single else np.arange(n), problems)
    if problems.errors:
        missing = NotFound(problems.errors[0].msg)
        missing.errors = problems.errors
        raise missing
    return np.broadcast_to(found, n)


def _on(family: Family, target: Ints, gpu: int) -> Family:
    """The rows of a family that one GPU is asked for."""
    mine = np.flatnonzero(target[family.rows] == gpu)
    return Family(family.form, family.table.take(mine), family.rows[mine])
