"""Read measurements from CSV into the API's JSON form."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from app.errors import FieldError, Malformed, TooLarge
from app.runtime.compiled import compiled
from app.wire.measurements.row_columns import (
    COLUMNS,
    READ,
    Column,
    Row,
    assemble,
    cell_errors,
    default_kind,
    header,
    measurement,
)
from app.wire.measurements.upload import Objects

(_NEWLINE,) = b"\n"


# Longest line of a CSV, bytes: a longer one is no row, and would be read as one before it is refused.
MAX_LINE_BYTES = 1 << 20


def check_lines(body: bytes) -> None:
    """Raise Malformed if a line is longer than MAX_LINE_BYTES."""
    line = _long_line(body, MAX_LINE_BYTES)
    if line:
        raise Malformed(f"Line {line:,} of the CSV is over {MAX_LINE_BYTES:,} bytes long.")


@compiled
def _long_line(text: bytes, most: int) -> int:
    """Return the number of the first line of more than `most` bytes, from 1; 0 if there is none."""
    first, line, k = 0, 1, 0
    while k < len(text) and k - first <= most:
        if text[k] == _NEWLINE:
            first = k + 1
            line += 1
        k += 1
    return line if k - first > most else 0


def read_csv(body: bytes, *, max_rows: int) -> list[Row]:
    """Return the measurements of a CSV body."""
    return [default_kind(row) for row in read_columns(body, COLUMNS, max_rows=max_rows)]


def read_columns(body: bytes, known: Mapping[str, Column], *, max_rows: int) -> list[Row]:
    """Return the rows of a CSV body in UTF-8, comma separated, whose header line names `known` columns."""
    check_lines(body)
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = body[: error.start].count(b"\n") + 1
        raise Malformed(f"The CSV is not UTF-8: byte {error.start} in line {line}.") from error
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        names = [name.strip() for name in next(reader, [])]
        if not names:
            raise Malformed("The CSV is empty; its first line names the columns.")
        return _csv_rows(reader, names, header(names, "CSV", known), max_rows)
    except csv.Error as error:
        raise Malformed(f"The CSV cannot be parsed at line {reader.line_num}: {error}.") from error


def _csv_rows(reader: Any, names: Sequence[str], columns: Sequence[Column], max_rows: int) -> list[Row]:
    rows: list[Row] = []
    errors: list[FieldError] = []
    number = -1
    for cells in reader:
        if not cells:
            continue
        number += 1
        if number >= max_rows:
            raise TooLarge(f"At most {max_rows} rows are taken at once; send the rest in another request.")
        if len(cells) != len(names):
            column = names[len(cells)] if len(cells) < len(names) else names[-1]
            msg = f"{len(cells)} cells where the header names {len(names)} columns (line {reader.line_num})"
            errors.append(FieldError((number, column), msg))
            continue
        rows.append(assemble(columns, _csv_cells(number, names, columns, cells, errors)))
    if errors:
        raise cell_errors(errors, "CSV")
    return rows


def _csv_cells(
    number: int, names: Sequence[str], columns: Sequence[Column], cells: Sequence[str | None], errors: list[FieldError]
) -> list[Any]:
    values: list[Any] = []
    for name, column, raw in zip(names, columns, cells, strict=True):
        cell, value = (raw or "").strip(), None
        read, expected = READ[column.holds]
        try:
            value = read(cell) if cell else None
        except ValueError:
            errors.append(FieldError((number, name), f"{cell[:40]!r} is not {expected}"))
        values.append(value)
    return values


def read_text_table(table: pa.Table, position: NDArray[np.intp]) -> Objects:
    """Return the rows of a text table with known column names; `position` is each row's place in the file, int [n]."""
    names, errors = table.column_names, list[FieldError]()
    columns = header(names, "CSV")
    rows = zip(position.tolist(), *(cells.to_pylist() for cells in table.columns), strict=True)
    read = [measurement(columns, _csv_cells(number, names, columns, cells, errors)) for number, *cells in rows]
    if errors:
        raise cell_errors(errors, "CSV")
    return Objects(read, position)
