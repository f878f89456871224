"""Measurements in CSV and Parquet: columns, cells, and assembly into the API's JSON form.

A column is a field of the row (`gpu`, `software`, `latency_ms`, `source`, ...) or of its workload (`kind`, `name`,
`flops`, ...; a leading `workload.` is allowed). Fields of the workload's size are `n`, `rows`, `cols`, `iterations`,
also written `size.n` and so on; the launched function is `kernel.name`, `kernel.grid`, `kernel.block` (grids and blocks
as `64x64x1`); phases are `phases_ms.<phase>`; loads on served models have `load.concurrency`, `serving.ttft_ms` and so
on. An empty cell or a null is an absent field; without a column `kind` every row is a kernel. Rows count from 0, as in
JSON.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from numpy.typing import NDArray

from app.errors import BadInput, FieldError, Malformed, TooLarge
from app.ops.kernel import SIZE_FIELDS
from app.runtime.compiled import compiled
from app.tables.arrays import Ints
from app.wire.decoding import decode_plain
from app.wire.field_facts import field_facts
from app.wire.kernel_workload import KernelSize, KernelWorkload
from app.wire.measurement_form import MeasuredModel, MeasurementIn, Objects, Phase, ServedTimes
from app.wire.serving_form import ServingLoad, ServingWorkload

Row = dict[str, Any]
Path = tuple[str, ...]

# Most errors that one answer lists.
MAX_REPORTED = 1000

NUMBER, TEXT = "number", "text"
DIMS, FLAG, OBJECT = "dims", "flag", "object"
_HOLDS = {"whole": NUMBER, "number": NUMBER, "text": TEXT, "flag": FLAG, "object": OBJECT}


@dataclass(frozen=True, slots=True)
class Column:
    """Path of a column's cells in a row, and their type: number, text, dims, flag, or an object in JSON."""

    path: Path
    holds: str


def _cells(struct: type[Struct], before: str = "", *, objects: bool = False) -> dict[str, str]:
    """Return what the cells of each field hold, by its name after `before`; lists have no column."""
    kinds = {before + name: fact.kind for name, fact in field_facts(struct).items()}
    return {name: _HOLDS[kind] for name, kind in kinds.items() if kind in _HOLDS and (objects or kind != "object")}


def _columns() -> dict[str, Column]:
    """Return every accepted column by name."""
    row = {
        **_cells(MeasurementIn),
        **dict.fromkeys((f"phases_ms.{phase}" for phase in get_args(Phase)), NUMBER),
        **_cells(ServedTimes, "serving."),
        **{"kernel.name": TEXT, "kernel.grid": DIMS, "kernel.block": DIMS},
    }
    workload = {
        **_cells(KernelWorkload),
        **_cells(KernelSize),
        **_cells(MeasuredModel, objects=True),
        **_cells(ServingWorkload, objects=True),
        **_cells(ServingLoad, "load."),
    }
    known = {name: Column(tuple(name.split(".")), holds) for name, holds in row.items()}
    for name, holds in workload.items():
        if name in ("load", "software"):  # a load has a column per field, and the software is the row's
            continue
        size = name in SIZE_FIELDS
        column = Column(("workload", "size", name) if size else ("workload", *name.split(".")), holds)
        full = f"size.{name}" if size else name
        known |= {name: column, full: column, f"workload.{full}": column}
    return known


COLUMNS = _columns()


def cell_errors(errors: Sequence[FieldError], what: str) -> BadInput:
    """Return the error for wrong cells of a CSV, Parquet file or list, with up to MAX_REPORTED of them."""
    shown = f" The first {MAX_REPORTED} are listed." if len(errors) > MAX_REPORTED else ""
    count = "1 cell is" if len(errors) == 1 else f"{len(errors)} cells are"
    return BadInput(f"{count} wrong in this {what}; nothing was stored.{shown}", errors=errors[:MAX_REPORTED])


def header(names: Sequence[str], what: str, known: Mapping[str, Column] = COLUMNS) -> list[Column]:
    """Return the columns of a header. Raises BadInput that names unknown and repeated columns."""
    errors, columns, taken = [], [], dict[Path, str]()
    for name in names[: len(known) + MAX_REPORTED]:  # of more names some are surely wrong, and enough are reported
        column = known.get(name)
        if column is None:
            errors.append(FieldError((name,), f"unknown column; known are {', '.join(sorted(known))}"))
        elif column.path in taken:
            errors.append(FieldError((name,), f"the same field as column {taken[column.path]!r}"))
        else:
            taken[column.path] = name
            columns.append(column)
    if errors:
        unread = ", ".join(str(error.loc[0]) for error in errors[:20])
        raise BadInput(f"The {what} has columns that cannot be read: {unread}.", errors=errors[:MAX_REPORTED])
    return columns


def _number(cell: str) -> float | int:
    # "1_000" is valid Python and a mistake in data.
    if "_" in cell:
        raise ValueError(cell)
    value = float(cell)
    return int(value) if value.is_integer() else value


def _dims(cell: str) -> list[int]:
    return [int(part) for part in cell.replace(",", "x").split("x")]


def _flag(cell: str) -> bool:
    if cell.lower() not in ("true", "false"):
        raise ValueError(cell)
    return cell.lower() == "true"


def _object(cell: str) -> dict[str, Any]:
    try:
        value = decode_plain(cell.encode())
    except Malformed as error:
        raise ValueError(cell) from error
    if not isinstance(value, dict):
        raise ValueError(cell)
    return value


# Parser of each cell type from text, and its description.
READ: dict[str, tuple[Callable[[str], Any], str]] = {
    NUMBER: (_number, "a number"),
    TEXT: (str, "text"),
    DIMS: (_dims, "one to three whole numbers as 64x64x1"),
    FLAG: (_flag, "true or false"),
    OBJECT: (_object, "an object in JSON"),
}


def _put(row: Row, path: Path, value: Any) -> None:
    for name in path[:-1]:
        row = row.setdefault(name, {})
    row[path[-1]] = value


def assemble(columns: Sequence[Column], cells: Iterable[Any]) -> Row:
    """Return one row from its cells. Missing (None) cells add no field."""
    row: Row = {}
    for column, value in zip(columns, cells, strict=True):
        if value is not None:
            _put(row, column.path, value)
    return row


def measurement(columns: Sequence[Column], cells: Iterable[Any]) -> Row:
    """Return one measurement from its cells; its kind defaults to kernel."""
    return default_kind(assemble(columns, cells))


def default_kind(row: Row) -> Row:
    """Set the workload's kind to kernel if it has none, and return the row."""
    row.setdefault("workload", {}).setdefault("kind", "kernel")
    return row


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
            raise TooLarge(f"At most {max_rows:,} rows are taken at once; send the rest in another request.")
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


# Ticks per second of each timestamp unit. The limit is the year 9892, valid in every time zone.
_TICKS, _MOST_S = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}, 250_000_000_000


def read_parquet_table(table: pa.Table, position: Ints) -> Objects:
    """Return the rows of a table with known column names; `position` is each row's place in the file, int [n].

    Cells of the wrong type are refused by column.
    """
    columns = header(table.column_names, "Parquet file")
    _check_types(table.schema, columns)
    cells = [_plain(table.column(k), column, position) for k, column in enumerate(columns)]
    return Objects([measurement(columns, row) for row in zip(*cells, strict=True)], position)


def _fits(kind: pa.DataType, holds: str) -> bool:
    if pa.types.is_null(kind):
        return True
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    whole_or_float = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if holds == NUMBER:
        return bool(whole_or_float)
    if holds == FLAG:
        return bool(pa.types.is_boolean(kind))
    if holds == DIMS:
        nested = pa.types.is_list(kind) or pa.types.is_large_list(kind)
        return bool(text or pa.types.is_integer(kind) or (nested and pa.types.is_integer(kind.value_type)))
    return bool(text or pa.types.is_timestamp(kind))


def _check_types(schema: pa.Schema, columns: Sequence[Column]) -> None:
    errors = [
        FieldError((field.name,), f"a column of {field.type} where {READ[column.holds][1]} is expected")
        for field, column in zip(schema, columns, strict=True)
        if not _fits(field.type, column.holds)
    ]
    if errors:
        raise BadInput("Columns of the Parquet file have the wrong type.", errors=errors)


def to_microseconds(times: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return times in microseconds. Times out of the range of Python's datetime become 1970, which no row has.

    Nanoseconds carry no information on when a kernel ran.
    """
    ticks = times.cast(pa.int64())
    most = min(_MOST_S * _TICKS[times.type.unit], 2**63 - 1)
    out_of_range = pc.or_(pc.less(ticks, 0), pc.greater(ticks, most))
    known = pc.if_else(out_of_range, pa.scalar(0, pa.int64()), ticks).cast(times.type)
    return known.cast(pa.timestamp("us", tz=times.type.tz), safe=False)


def _plain(values: pa.ChunkedArray, column: Column, position: Ints) -> list[Any]:
    """Return the cells of one column as Python values."""
    if pa.types.is_timestamp(values.type):
        values = to_microseconds(values)
    cells: list[Any] = values.to_pylist()
    if column.holds in (DIMS, OBJECT):
        return [_parse_text(number, column, cell) for number, cell in zip(position.tolist(), cells, strict=True)]
    if pa.types.is_floating(values.type):
        # A data frame stores whole numbers with gaps as floats.
        return [int(cell) if cell is not None and cell.is_integer() else cell for cell in cells]
    return [cell.isoformat() if isinstance(cell, datetime) else cell for cell in cells]


def _parse_text(number: int, column: Column, cell: Any) -> Any:
    """Return the value of a cell that may be text."""
    read, expected = READ[column.holds]
    try:
        return read(cell) if isinstance(cell, str) else cell
    except ValueError:
        error = FieldError((number, ".".join(column.path)), f"{cell[:40]!r} is not {expected}")
        raise cell_errors([error], "Parquet file") from None
