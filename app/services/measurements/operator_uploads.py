"""CSV and Parquet files of measured operators, read into columns without a Python object per cell.

Columns are fields of the measurement (`gpu`, `software`, `latency_ms`, `kernel.name`, `kernel.grid` as `64x64x1`, ...)
and of the operator (`op`, `dtype`, `m`, ...; a leading `workload.` is allowed). An empty cell is an absent field.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from app.errors import BadInput, Malformed, TooLarge
from app.services.decoding import summary
from app.services.measurements.measured_operators import MAX_REPORTED, ROW_COLUMNS, WORDS, OperatorColumns, placed
from app.services.measurements.tabular import refuse_huge
from app.services.operators.batch_files import is_numbers, is_words, numbers_of, words_of
from app.services.operators.columns import Column, Numbers, Problems, Words
from app.services.operators.forms import COLUMN_NAMES, PAIR_FIELDS, WORD_FIELDS

KINDS = ("operator", "operators")
_WORDS = {*WORDS, *WORD_FIELDS, "kind"}
_KNOWN = tuple(dict.fromkeys((*ROW_COLUMNS, "kind", *COLUMN_NAMES)))
_EXTENTS = ("kernel.grid", "kernel.block")
_PREFIX = "workload."


def own_name(name: str) -> str:
    """A column's name without the `workload.` that it may begin with."""
    plain = name.strip().removeprefix(_PREFIX)
    return name.strip() if plain in ROW_COLUMNS else plain


def csv_names(body: bytes) -> list[str]:
    """Names in the header of a CSV body; empty where it cannot be read."""
    first = body[: body.find(b"\n")] if b"\n" in body else body
    try:
        return next(csv.reader(io.StringIO(first.decode("utf-8-sig", "replace"))), [])
    except csv.Error:
        return []


def _names(given: Sequence[str]) -> list[str]:
    """Names of known columns; unknown and repeated ones are refused."""
    problems = Problems((), most=MAX_REPORTED)
    names = [own_name(name) for name in given]
    for k, name in enumerate(names):
        if name not in _KNOWN:
            problems.add(given[k], f"unknown column; known are {', '.join(_KNOWN)}")
        elif name in names[:k]:
            problems.add(given[k], "stands twice")
    problems.refuse()
    return names


def read_parquet(body: bytes, *, max_rows: int) -> OperatorColumns:
    """Operators of a Parquet body."""
    try:
        source = pq.ParquetFile(pa.BufferReader(body))
        names = _names(source.schema_arrow.names)
        refuse_huge(source.metadata, max_rows)
        return _columns_of(source.read().rename_columns(names))
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise Malformed(f"The Parquet file cannot be read: {str(error)[:200]}") from error


def _columns_of(table: pa.Table) -> OperatorColumns:
    """A table whose columns have known names; cells of the wrong type are refused by column."""
    problems = Problems((), most=MAX_REPORTED)
    columns: dict[str, Column] = {}
    for name, cells in zip(table.column_names, table.columns, strict=True):
        if name in _EXTENTS or name == "measured_at":
            columns[name] = words_of(_as_text(cells))
        elif name in _WORDS and is_words(cells.type):
            columns[name] = words_of(cells)
        elif name not in _WORDS and is_numbers(cells.type, pair=name in PAIR_FIELDS):
            columns[name] = numbers_of(name, cells)
        else:
            wanted = "words" if name in _WORDS else "numbers"
            problems.add(name, f"a column of {cells.type} where {wanted} are wanted")
    problems.refuse()
    return _sent(columns, table.num_rows, problems)


def _sent(columns: dict[str, Column], n: int, problems: Problems) -> OperatorColumns:
    """The columns without that of the kind, which must say operator wherever it says anything."""
    kind = columns.pop("kind", None)
    if isinstance(kind, Words):
        for code, word in enumerate(kind.words):
            if word not in KINDS:
                problems.add("kind", "a file with a column op holds operators only", np.flatnonzero(kind.codes == code))
    _refuse(problems, n)
    return OperatorColumns(columns, np.arange(n))


def _refuse(problems: Problems, n: int) -> None:
    """BadInput if any of n rows was wrong, with errors by row."""
    if problems.errors:
        errors = [placed(error, np.arange(n)) for error in problems.errors]
        raise BadInput(summary(errors), errors=errors)


def _as_text(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    """Lists as 64x64x1 and times in ISO 8601."""
    if is_words(cells.type):
        return cells
    if pa.types.is_timestamp(cells.type):
        cells = cells.cast(pa.timestamp("us", tz=cells.type.tz), safe=False)
    return pa.chunked_array([[None if cell is None else _text(cell) for cell in cells.to_pylist()]], pa.string())


def _text(cell: Any) -> str:
    if isinstance(cell, datetime):
        return cell.isoformat()
    return "x".join(map(str, cell)) if isinstance(cell, list) else str(cell)


def read_csv(body: bytes, *, max_rows: int) -> OperatorColumns:
    """Operators of a CSV body with a header line, UTF-8, comma separated."""
    names = _names(csv_names(body))
    problems = Problems((), most=MAX_REPORTED)
    table = _text_table(body, names, problems)
    if table.num_rows > max_rows:
        raise TooLarge(f"At most {max_rows:,} rows are taken at once; this file has {table.num_rows:,}.")
    columns: dict[str, Column] = {}
    for name, cells in zip(names, table.columns, strict=True):
        columns[name] = words_of(cells) if name in _WORDS else _parsed(name, cells, problems)
    _refuse(problems, table.num_rows)
    return _sent(columns, table.num_rows, problems)


def _text_table(body: bytes, names: Sequence[str], problems: Problems) -> pa.Table:
    """All cells as text without the space around it, null where empty."""

    def refuse(row: pa_csv.InvalidRow) -> str:
        cells = f"{row.actual_columns} cells where the header names {row.expected_columns} columns"
        # The line of the header is row 1.
        problems.add(names[min(row.actual_columns, len(names) - 1)], cells, np.array([(row.number or 2) - 2]))
        return "skip"

    try:
        table = pa_csv.read_csv(
            pa.BufferReader(body),
            pa_csv.ReadOptions(use_threads=False, column_names=list(names), skip_rows=1),
            pa_csv.ParseOptions(invalid_row_handler=refuse),
            pa_csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=True,
            ),
        )
    except pa.ArrowException as error:
        raise Malformed(f"The CSV cannot be parsed: {str(error)[:200]}.") from error
    _refuse(problems, body.count(b"\n") + 1)
    trimmed = [pc.utf8_trim_whitespace(cells) for cells in table.columns]
    empty = pa.scalar(None, pa.string())
    return pa.table([pc.if_else(pc.equal(cells, ""), empty, cells) for cells in trimmed], names=list(names))


def _parsed(name: str, cells: pa.ChunkedArray, problems: Problems) -> Numbers:
    """Figures of text cells; a pair is written 3x5."""
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
