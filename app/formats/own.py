"""Read measurements in gpucast's own form, as in POST /measurements: bodies by media type, files, folders of files.

CSV and Parquet may mix kinds of rows, one field per column: fields of the measurement (`gpu`, `software`, `latency_ms`,
`kernel.name`, `kernel.grid` as `64x64x1`, ...) and of the workload (`op`, `dtype`, `m`, ...; a leading `workload.` is
allowed). An empty cell is an absent field. A column `kind` gives a row's kind: kernel, operator or model. Without it,
rows with a column `op` are operators and others kernels. A column `outcome` gives the result of a run: rows other than
"measured" are skipped and counted. Operators are read in columns, without a Python object per cell; others as objects.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
from numpy.typing import NDArray

from app.errors import BadInput, FieldError, Malformed, NotFound, UnsupportedMedia
from app.formats import DEVICE
from app.formats.base import Part, PartsImporter
from app.ops.base import Dim
from app.runtime.release import release
from app.tables.arrays import Ints
from app.wire.batch_files import is_numbers, is_words, to_numbers, to_words
from app.wire.decoding import decode_plain
from app.wire.json_text import list_length
from app.wire.measurement_form import Objects, OperatorCells, OperatorColumns, Upload, UploadPart
from app.wire.measurement_rows import (
    COLUMNS,
    MAX_REPORTED,
    cell_errors,
    check_lines,
    read_csv,
    read_parquet_table,
    read_text_table,
    to_microseconds,
)
from app.wire.operator_columns import Column, Numbers, Problems
from app.wire.operator_forms import COLUMN_NAMES, PAIR_FIELDS, WORD_FIELDS
from app.wire.table_files import DAMAGED, PARQUET, TableReader, check_rows, read_schema, read_table

_ABSENT = float("nan")
# Figures besides the operator's own, in the request's units.
FIGURES = (
    Dim("latency_ms", "time on the device, milliseconds", least=1e-6, whole=False, most=1e9),
    Dim("latency_std_ms", "its spread, milliseconds", least=0.0, default=_ABSENT, whole=False, most=1e9),
    Dim("runs", "how often it was run", default=_ABSENT, most=2.0**31 - 1),
    Dim("clock_hz", "clock, Hz", default=_ABSENT, whole=False, most=1e12),
    Dim("power_w", "power, W", least=0.0, default=_ABSENT, whole=False, most=1e6),
)
WORDS = ("gpu", "software", "source", "measured_at", "kernel.name", "kernel.grid", "kernel.block")
# Columns of a measurement besides its operator's; `software` is also one of the operator.
ROW_COLUMNS = (*WORDS, *(figure.name for figure in FIGURES))
OPERATOR_COLUMNS = tuple(dict.fromkeys((*ROW_COLUMNS, *COLUMN_NAMES)))
_WORDS = {*WORDS, *WORD_FIELDS}
_AS_TEXT = ("kernel.grid", "kernel.block", "measured_at")
_PREFIX = "workload."


def strip_prefix(name: str) -> str:
    """Return a column's name without a leading `workload.`."""
    plain = name.strip().removeprefix(_PREFIX)
    return name.strip() if plain in ROW_COLUMNS else plain


def to_measurement_error(error: FieldError, position: Ints) -> FieldError:
    """Convert an error of a column, (name, row), to one of a measurement, (position, field)."""
    name, *row = error.loc
    field = (*str(name).split("."),) if name in ROW_COLUMNS else ("workload", name)
    return FieldError((*(int(position[int(k)]) for k in row), *field), error.msg)


def csv_names(body: bytes) -> list[str]:
    """Return the names in the header of a CSV body; empty if unreadable."""
    first = body[: body.find(b"\n")] if b"\n" in body else body
    try:
        return next(csv.reader(io.StringIO(first.decode("utf-8-sig", "replace"))), [])
    except csv.Error:
        return []


def read_parquet_columns(table: pa.Table, position: Ints) -> OperatorColumns:
    """Return the operators of a table; `position` is each row's place in the file, int [n].

    Raises BadInput for columns of the wrong type.
    """
    problems = Problems((), most=MAX_REPORTED)
    columns: dict[str, Column] = {}
    for name, cells in zip(table.column_names, table.columns, strict=True):
        if name in _AS_TEXT:
            columns[name] = to_words(_as_text(cells))
        elif name in _WORDS and is_words(cells.type):
            columns[name] = to_words(cells)
        elif name not in _WORDS and is_numbers(cells.type, pair=name in PAIR_FIELDS):
            columns[name] = to_numbers(name, cells)
        else:
            expected = "text" if name in _WORDS else "numbers"
            problems.add(name, f"a column of {cells.type} where {expected} is expected")
    problems.refuse()
    return OperatorColumns(columns, position)


def _refuse(problems: Problems, position: Ints) -> None:
    """Raise BadInput if there are problems, with errors by row."""
    if problems.errors:
        errors = [to_measurement_error(error, position) for error in problems.errors]
        raise BadInput.of(errors, most=len(errors))


def _as_text(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return lists as 64x64x1 and times in ISO 8601."""
    if is_words(cells.type):
        return cells
    if pa.types.is_timestamp(cells.type):
        texts = [None if cell is None else cell.isoformat() for cell in to_microseconds(cells).to_pylist()]
    else:
        lists = (cell if cell is None or isinstance(cell, list) else [cell] for cell in cells.to_pylist())
        texts = [None if cell is None else "x".join(map(str, cell)) for cell in lists]
    return pa.chunked_array([texts], pa.string())


def read_text_columns(table: pa.Table, position: Ints) -> OperatorColumns:
    """Return the operators of a text table; `position` is each row's place in the file, int [n]."""
    problems = Problems((), most=MAX_REPORTED)
    columns: dict[str, Column] = {}
    for name, cells in zip(table.column_names, table.columns, strict=True):
        columns[name] = to_words(cells) if name in _WORDS else _parse_numbers(name, cells, problems)
    _refuse(problems, position)
    return OperatorColumns(columns, position)


def text_table(body: bytes, names: Sequence[str]) -> pa.Table:
    """Return the cells of a CSV body as stripped text, null where empty; `names` are its columns.

    The body is UTF-8, comma separated, with a header line.
    """
    problems = Problems((), most=MAX_REPORTED)

    def refuse(row: pa_csv.InvalidRow) -> str:
        cells = f"{row.actual_columns} cells where the header names {row.expected_columns} columns"
        # The header is line 1.
        problems.add(names[min(row.actual_columns, len(names) - 1)], cells, np.array([(row.number or 2) - 2]))
        return "skip"

    types = dict.fromkeys(names, pa.string())
    as_text = pa_csv.ConvertOptions(column_types=types, null_values=[""], strings_can_be_null=True)
    try:
        table = pa_csv.read_csv(
            pa.BufferReader(body),
            pa_csv.ReadOptions(use_threads=False, column_names=list(names), skip_rows=1),
            pa_csv.ParseOptions(invalid_row_handler=refuse),
            as_text,
        )
    except pa.ArrowException as error:
        raise Malformed(f"The CSV cannot be parsed: {str(error)[:200]}.") from error
    _refuse(problems, np.arange(body.count(b"\n") + 1))
    trimmed = [pc.utf8_trim_whitespace(cells) for cells in table.columns]
    empty = pa.scalar(None, pa.string())
    return pa.table([pc.if_else(pc.equal(cells, ""), empty, cells) for cells in trimmed], names=list(names))


def _parse_numbers(name: str, cells: pa.ChunkedArray, problems: Problems) -> Numbers:
    """Return the figures of text cells; a pair is written 3x5."""
    absent = cells.is_null().to_numpy()
    try:
        return Numbers(cells.cast(pa.float64()).to_numpy(), absent, False)
    except pa.ArrowException:
        pass
    pairs = np.full((len(cells), 2), np.nan)
    for row, cell in enumerate(cells.to_pylist()):
        parts = [] if cell is None else cell.split("x")
        try:
            if len(parts) > (2 if name in PAIR_FIELDS else 1) or "_" in (cell or ""):
                raise ValueError(cell)
            pairs[row] = [float(part) for part in parts] or np.nan
        except ValueError:
            problems.add(name, f"{cell[:40]!r} is not a number", np.array([row]))
    return Numbers(pairs if name in PAIR_FIELDS else pairs[:, 0], absent, False)


OUTCOME = "outcome"
_MEASURED = "measured"
# Columns of measuring tools for human readers; not used in predictions, so not stored.
REMARKS = ("peak_memory_bytes", "throttle_reason", "temperature_c", "blocks_per_sm", "suite", "point")
_MOST_OUTCOMES = 100
_KNOWN = tuple(
    dict.fromkeys((OUTCOME, *OPERATOR_COLUMNS, *(name for name in COLUMNS if strip_prefix(name) == name), *REMARKS))
)


def check_column_names(given: Sequence[str]) -> list[str]:
    """Return column names without a leading `workload.`. Raises BadInput for unknown and repeated ones."""
    problems = Problems((), most=MAX_REPORTED)
    names, seen = list[str](), set[str]()
    for each in given[: len(_KNOWN) + MAX_REPORTED]:  # of more names some are surely wrong, and enough are reported
        name = strip_prefix(each)
        if name not in _KNOWN:
            problems.add(each, f"unknown column; known are {', '.join(_KNOWN)}")
        elif name in seen:
            problems.add(each, "appears twice")
        names.append(name)
        seen.add(name)
    problems.refuse()
    return names


class CellReaders(NamedTuple):
    """Readers of a table format, with the place of each row: operators as columns, others as objects."""

    operators: Callable[[pa.Table, Ints], OperatorColumns]
    objects: Callable[[pa.Table, Ints], Objects]


def split_by_kind(table: pa.Table, cells: CellReaders, most: int, device: Mapping[str, Any] | None = None) -> Upload:
    """Return the rows of a table with known columns, by kind; at most so many as objects."""
    ignored = Counter(
        {name: len(table[name]) - table[name].null_count for name in REMARKS if name in table.schema.names}
    )
    table = table.drop_columns(list(ignored))
    table, position, skipped = _drop_unmeasured(table)
    return Upload(tuple(_by_kind(table, position, cells, most)), skipped, +ignored, device)


def _wrong(name: str, msg: str) -> BadInput:
    return BadInput(f"The column {name} cannot be read: {msg}.", errors=[FieldError((name,), msg)])


def _text_cells(table: pa.Table, name: str) -> pa.ChunkedArray:
    cells = table[name]
    if not is_words(cells.type):
        raise _wrong(name, f"a column of {cells.type} where text is expected")
    return cells.cast(pa.string())


def _drop_unmeasured(table: pa.Table) -> tuple[pa.Table, Ints, Counter[str]]:
    """Return the measured rows, their places, and the reasons of the others; without `outcome` all are measured."""
    position = np.arange(table.num_rows)
    if OUTCOME not in table.schema.names:
        return table, position, Counter()
    # Tools may add details after a colon, for human readers.
    outcome = pc.split_pattern(_text_cells(table, OUTCOME).fill_null(_MEASURED), ":", max_splits=1)
    outcome = pc.list_element(outcome, 0)
    table = table.drop_columns([OUTCOME])
    outcomes = Counter({item["values"]: item["counts"] for item in pc.value_counts(outcome).to_pylist()})
    if outcomes.keys() <= {_MEASURED}:
        return table, position, Counter()
    if len(outcomes) > _MOST_OUTCOMES:
        raise _wrong(OUTCOME, f"{len(outcomes):,} different values: at most {_MOST_OUTCOMES} are counted")
    del outcomes[_MEASURED]
    measured = pc.equal(outcome, _MEASURED)
    skipped = Counter({f"not measured: {word[:100]}": count for word, count in outcomes.items()})
    return table.filter(measured), position[measured.to_numpy()], skipped


def _by_kind(table: pa.Table, position: Ints, cells: CellReaders, most: int) -> Iterator[UploadPart]:
    """Yield operators as cells of columns whose types are right, and other rows as objects."""
    operator = _is_operator(table)
    without_kind = table.drop_columns(["kind"]) if "kind" in table.schema.names else table
    if operator.any():
        rows = OperatorCells(*_select_kind(without_kind, position, operator, OPERATOR_COLUMNS), cells.operators)
        cells.operators(rows.table.slice(0, 0), position[:0])
        yield rows
    if not operator.all():
        check_rows(int(np.sum(~operator)), "file besides operators", most)
        yield cells.objects(*_select_kind(table, position, ~operator, COLUMNS))


def _select_kind(
    table: pa.Table, position: Ints, chosen: NDArray[np.bool_], known: Collection[str]
) -> tuple[pa.Table, Ints]:
    """Return the chosen rows, with their non-empty columns. Raises BadInput for columns that such rows cannot have."""
    if not chosen.all():
        table, position = table.filter(pa.array(chosen)), position[chosen]
    table = table.select([name for name in table.column_names if table[name].null_count < len(table)])
    for name in table.column_names:
        if name not in known:
            row = int(position[np.argmax(table[name].is_valid().to_numpy())])
            error = FieldError((row, "workload", name), "not a field of rows of this kind: leave it empty there")
            raise BadInput(f"Row {row} has a cell in column {name}, which is {error.msg}.", errors=[error])
    return table, position


def _is_operator(table: pa.Table) -> NDArray[np.bool_]:
    """Return which rows are operators, bool [n]: by kind, or without a kind in a file with a column `op`."""
    has_op = "op" in table.schema.names
    if "kind" not in table.schema.names:
        return np.full(table.num_rows, has_op)
    kind = _text_cells(table, "kind")
    operators = pc.is_in(kind, pa.array(["operator", "operators"]))
    if has_op:
        operators = pc.or_(operators, kind.is_null())
    mask: NDArray[np.bool_] = operators.to_numpy()
    return mask


# Rows of a request as objects: each takes 3 to 4 kB, and half a million of them over a GiB. Operators may be columns.
MAX_OBJECTS = 200_000
_MAX_ROWS = 100_000_000  # of local files, for which only memory is the limit

_AS_TABLE = {"op", OUTCOME, *REMARKS}
_PARQUET = CellReaders(read_parquet_columns, read_parquet_table)
_TEXT = CellReaders(read_text_columns, read_text_table)


def read_measurements(
    body: bytes, content_type: str | None, *, max_rows: int, read_table: TableReader = read_table
) -> Upload:
    """Return the measurements of a body, JSON by default. Raises BadInput for an empty body."""
    media = (content_type or "application/json").partition(";")[0].strip().lower()
    reader = READERS.get(media)
    if reader is None:
        raise UnsupportedMedia(f"Measurements are read as {', '.join(READERS)}; this is {media!r}.")
    upload = reader(body, max_rows, read_table)
    if not len(upload):
        raise BadInput("The body has no measurement.")
    return upload


def _most_objects(max_rows: int) -> int:
    return max_rows if max_rows == _MAX_ROWS else min(max_rows, MAX_OBJECTS)


def _json(body: bytes, max_rows: int, _: TableReader) -> Upload:
    """Read a list of objects that are already in the API's form."""
    check_rows(list_length(body), "list, not operators in Parquet,", _most_objects(max_rows))
    rows = decode_plain(body)
    if not isinstance(rows, list):
        raise BadInput("Send a JSON list of measurements, also for a single one.")
    errors = [FieldError((k,), "a measurement is an object") for k, row in enumerate(rows) if not isinstance(row, dict)]
    if errors:
        refused = cell_errors(errors, "list")
        release(errors)
        release(rows)
        raise refused
    return Upload((Objects.of(rows),))


def _csv(body: bytes, max_rows: int, _: TableReader) -> Upload:
    check_lines(body)
    names = csv_names(body)
    if _AS_TABLE.isdisjoint(map(strip_prefix, names)):
        return Upload((Objects.of(read_csv(body, max_rows=_most_objects(max_rows))),))
    table = text_table(body, check_column_names(names))
    check_rows(table.num_rows, "file", max_rows)
    return split_by_kind(table, _TEXT, _most_objects(max_rows))


def _parquet(body: bytes, max_rows: int, read_table: TableReader) -> Upload:
    try:
        schema = read_schema(body, PARQUET)
        names = check_column_names(schema.names)
        table = read_table(body, PARQUET, max_rows).rename_columns(names)
        return split_by_kind(table, _PARQUET, _most_objects(max_rows), _device(schema.metadata))
    except DAMAGED as error:
        raise Malformed(f"The Parquet file cannot be read: {str(error)[:200]}") from error


def _device(metadata: Mapping[bytes, bytes] | None) -> Mapping[str, Any] | None:
    """Return the GPU specification in a file's metadata, or None."""
    specification = (metadata or {}).get(DEVICE)
    if specification is None:
        return None
    device = decode_plain(specification)
    if not isinstance(device, dict):
        where = DEVICE.decode()
        raise BadInput(f"{where} is not a GPU.", errors=[FieldError((where,), "must be a GPU's specification in JSON")])
    return device


READERS: dict[str, Callable[[bytes, int, TableReader], Upload]] = {"application/json": _json, "text/csv": _csv}
READERS |= dict.fromkeys(("application/vnd.apache.parquet", "application/x-parquet"), _parquet)


_MEDIA = {".json": "application/json", ".csv": "text/csv", ".parquet": "application/vnd.apache.parquet"}


def read(path: Path) -> Iterator[Part]:
    """Yield the parts of each file: operators, and other rows."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    readable = [file for file in files if file.suffix in _MEDIA]
    if not readable:
        raise NotFound(f"{path} holds no measurements: a file is {', '.join(_MEDIA)}, or a folder of such files.")
    for file in readable:
        upload = read_measurements(file.read_bytes(), _MEDIA[file.suffix], max_rows=_MAX_ROWS)
        # Reported once per file, even if it has no measured row.
        yield Part(file.name, Objects.of(()), None, upload.skipped, upload.ignored)
        for sent in upload.parts:
            yield Part(file.name, sent, None, device=upload.device)


IMPORTERS = {"measurements": PartsImporter("measurements", read)}
