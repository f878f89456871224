"""Predict operator rows in columns (POST /predict/batch), sent and answered as JSON, Arrow stream or Parquet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from app.engine.snapshot import GpuRows, Snapshot
from app.errors import MAX_ERRORS, BadInput, FieldError, NotFound
from app.runtime.allocator_trim import LARGE_BODY, trim_allocator
from app.services.operators.operator_tables import bound_names, json_columns, predict_rows, unsupported_rows
from app.services.operators.predict_operators import ROOFLINE, gpu_warnings, require_predictor, unsupported_message
from app.stacks.release import software_warnings
from app.steps.predict_rows import OperatorQuery
from app.tables.arrays import Floats, Ints
from app.warning_codes import CodedWarning
from app.wire.batch_files import FILES
from app.wire.decoding import convert_quickly, decode, decode_plain
from app.wire.json_text import EXPLAINED_BYTES, check_json_text
from app.wire.operator_columns import Column, Family, Problems, Words, read_families, row_count, text_to_numbers
from app.wire.operator_forms import BATCH_EXAMPLE, BatchResponse, OperatorBatch
from app.wire.prediction_form import AnsweredBy
from app.wire.table_files import TableReader, read_table

JSON = "application/json"
MEDIA = (JSON, *FILES)

# Rows of a column that are encoded in a millisecond or two.
_PART_ROWS = 50_000
_DECODER = msgspec.json.Decoder(OperatorBatch)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """Options for all rows; `gpu` applies to rows without one."""

    gpu: str | None
    predictor: str
    coverage: float
    max_rows: int
    power_cap_w: float | None = None


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    """Answers row by row.

    times_ms    float64 [3, n]: estimate, low, high, milliseconds
    bound       int [n], code into BOUNDS
    predictors  what answered, by GPU: the roofline if the requested predictor has no support in any row
    warnings    caveats, by GPU
    """

    times_ms: Floats
    bound: Ints
    predictors: dict[str, AnsweredBy]
    warnings: dict[str, list[CodedWarning]]


def predict_batch(
    snapshot: Snapshot, body: bytes, media: str, options: BatchOptions, read_table: TableReader = read_table
) -> bytes:
    """Answer a body of one of MEDIA in the same format. Raises BadInput, NotFound or TooLarge."""
    answer = _bytes(snapshot, body, media, options, read_table)
    if len(body) >= LARGE_BODY:
        trim_allocator()
    return answer


def _bytes(snapshot: Snapshot, body: bytes, media: str, options: BatchOptions, read_table: TableReader) -> bytes:
    file = FILES.get(media)
    columns = _json(body) if file is None else file.read(body, options.max_rows, read_table)
    answer = _predict(snapshot, columns, options)
    warnings = {gpu: [each.text for each in coded] for gpu, coded in answer.warnings.items()}
    if file is not None:
        answered_by = {
            "coverage": options.coverage,
            "predictors": answer.predictors,
            "warnings": warnings,
            "warning_codes": answer.warnings,
        }
        return file.write(answer.times_ms, answer.bound, msgspec.json.encode(answered_by))
    middle, low, high = (_encoded(column) for column in answer.times_ms)
    response = BatchResponse(
        middle,
        low,
        high,
        _encoded(answer.bound, bound_names),
        options.coverage,
        answer.predictors,
        warnings,
        answer.warnings,
    )
    return msgspec.json.encode(response)


def _encoded(column: NDArray[Any], to_list: Callable[[Any], list[Any]] = np.ndarray.tolist) -> Any:
    """Return a column in JSON, encoded in parts: other threads wait while msgspec encodes one."""
    parts = (column[first : first + _PART_ROWS] for first in range(0, len(column), _PART_ROWS))
    return msgspec.Raw(b"[" + b",".join(msgspec.json.encode(to_list(part))[1:-1] for part in parts) + b"]")


def _json(body: bytes) -> dict[str, Column]:
    """Return the columns of a JSON body. The reader of a column reports NaN, which is not JSON, with its row."""
    if len(body) > EXPLAINED_BYTES:
        return json_columns(_long_columns(decode_plain(body)))
    check_json_text(body)
    try:
        batch: Any = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        try:
            batch = msgspec.convert(decode_plain(body), OperatorBatch)
        except (msgspec.ValidationError, OverflowError):
            batch = decode(_DECODER, body, example=BATCH_EXAMPLE)
    return json_columns(structs.asdict(batch).items())


def _long_columns(raw: Any) -> Iterator[tuple[str, Any]]:
    """Yield the columns of a long body, checked one by one: other threads wait while msgspec checks one."""
    if not isinstance(raw, dict):
        convert_quickly(raw, OperatorBatch)
    for name, value in raw.items():
        yield name, getattr(convert_quickly({"op": "", name: value}, OperatorBatch), name)


def _predict(snapshot: Snapshot, columns: Mapping[str, Column], options: BatchOptions) -> BatchAnswer:
    problems = Problems(())
    n = row_count(columns, problems, max_rows=options.max_rows)
    snapshot = snapshot.under(options.power_cap_w)
    rows = GpuRows(snapshot)
    target = _targets(rows, columns.get("gpu"), options.gpu, n)
    targets = rows.capped(np.unique(target).tolist())
    require_predictor(snapshot.engine, rows, options.predictor, targets)
    families = read_families({name: column for name, column in columns.items() if name != "gpu"}, n, problems)
    gpus = rows.table()
    times_ms, bound = np.empty((3, n)), np.empty(n, dtype=np.intp)
    counts = {gpu: np.zeros(4, dtype=np.intp) for gpu in targets}  # rows, unanswered, unmeasured, slotted
    for gpu in targets:
        for family in families:
            mine = family if len(targets) == 1 else _on(family, target, gpu)
            if not len(mine.rows):
                continue
            wrong = unsupported_rows(snapshot.engine, mine.table, gpus, gpu)
            if len(wrong):
                problems.add("dtype", unsupported_message(gpus.ids[gpu], mine.table, int(wrong[0])), mine.rows[wrong])
                continue
            query = OperatorQuery(snapshot.engine, mine.table, gpus, options.predictor, options.coverage)
            times = predict_rows(query, gpu)
            times_ms[:, mine.rows], bound[mine.rows] = times.times_ms, times.bound
            counts[gpu] += (len(mine.rows), times.unanswered, times.unmeasured, times.slotted)
    problems.refuse()
    software, predictors, messages = columns.get("software"), {}, {}
    notes = software_warnings(software.words) if isinstance(software, Words) else []
    for gpu, (count, unanswered, unmeasured, slotted) in counts.items():
        spec, name = rows.spec(gpu), ROOFLINE if unanswered == count else options.predictor
        predictors[spec.id] = AnsweredBy(name, snapshot.engine.version_of(name, spec.id))
        messages[spec.id] = gpu_warnings(
            spec,
            options.predictor,
            unanswered=int(unanswered),
            unmeasured=int(unmeasured),
            slotted=bool(slotted),
            notes=[*rows.notes(gpu), *notes],
        )
    return BatchAnswer(times_ms, bound, predictors, messages)


def _targets(rows: GpuRows, column: Column | None, default: str | None, n: int) -> Ints:
    """Return the GPU row of every operator row, int [n]."""
    targets = np.full(n, np.nan) if column is None else _named(rows, column, n)
    absent = np.isnan(targets)
    if absent.any():
        if default is None:
            message = "required: the GPU, as a parameter or a column"
            which = np.flatnonzero(absent)[: MAX_ERRORS if column is not None else 1].tolist()
            errors = [FieldError(("gpu",) if column is None else ("gpu", row), message) for row in which]
            raise BadInput(message, errors=errors)
        targets = np.where(absent, rows.row(default, ("gpu",)), targets)
    return targets.astype(np.intp)


def _named(rows: GpuRows, column: Column, n: int) -> Floats:
    """Return the GPU rows of the names in a column, NaN where missing, float64 [n]. Raises NotFound with the rows."""
    problems = Problems(())
    if not isinstance(column, Words):
        problems.refuse_field("gpu", "must be text: the name of a GPU")

    def number(name: str) -> float:
        try:
            return float(rows.row(name, ("gpu",)))
        except NotFound as error:
            raise ValueError(error.detail) from error

    targets = text_to_numbers("gpu", column, number, None if column.single else np.arange(n), problems)
    if problems.errors:
        missing = NotFound(problems.errors[0].msg)
        missing.errors = problems.errors
        raise missing
    return np.broadcast_to(targets, n)


def _on(family: Family, target: Ints, gpu: int) -> Family:
    """Return the rows of a family on one GPU."""
    mine = np.flatnonzero(target[family.rows] == gpu)
    return Family(family.form, family.table.take(mine), family.rows[mine])
