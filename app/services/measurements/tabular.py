"""Bodies of measurements in JSON, CSV or Parquet, read into rows of the API's JSON form.

CSV and Parquet flatten a row into columns. A column is a field of the row (`gpu`, `software`, `latency_ms`,
`source`, ...) or of its workload (`kind`, `name`, `flops`, ...; a leading `workload.` is allowed). Fields of the
workload's size are `n`, `rows`, `cols`, `iterations`, also written `size.n` and so on; the launched function is
`kernel.name`, `kernel.grid`, `kernel.block` (grids and blocks as `64x64x1`); phases are `phases_ms.<phase>`. An empty
cell or a null is an absent field; without a column `kind` every row is a kernel. Rows count from 0, as in JSON.
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
from numpy.typing import NDArray

from app.errors import BadInput, FieldError, Malformed, TooLarge
from app.ops.kernel import GIVEN, SIZE_FIELDS
from app.services.decoding import plain
from app.services.measurements.form import Phase
from app.services.measurements.upload import Objects

Row = dict[str, Any]
Ints = NDArray[np.intp]
Path = tuple[str, ...]

MAX_REPORTED = 1000
# A small Parquet file can hold a column of one value repeated for gigabytes.
MAX_PARQUET_BYTES = 1 << 30

NUMBER, TEXT = "number", "text"
# Of a timestamp's units a second has so many; the year 9892, which every time zone has.
_TICKS, _MOST_S = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}, 250_000_000_000
_DIMS, _FLAG, _OBJECT = "dims", "flag", "object"
_ROW_FIELDS = {
    "gpu": TEXT,
    "software": TEXT,
    "source": TEXT,
    "measured_at": TEXT,
    "latency_ms": NUMBER,
    "latency_std_ms": NUMBER,
    "runs": NUMBER,
    "clock_hz": NUMBER,
    "power_w": NUMBER,
    "kernel.name": TEXT,
    "kernel.grid": _DIMS,
    "kernel.block": _DIMS,
}
_WORKLOAD = {
    **dict.fromkeys(GIVEN, NUMBER),
    **dict.fromkeys(("kind", "name", "access_pattern", "dtype"), TEXT),
    # Of models.
    **dict.fromkeys(("mode", "memory_format", "attention", "optimizer"), TEXT),
    **dict.fromkeys(("batch", "sequence", "image_size", "gradient_accumulation"), NUMBER),
    **dict.fromkeys(("compiled", "fused", "recompute"), _FLAG),
    **dict.fromkeys(("config", "parallelism"), _OBJECT),
}


@dataclass(frozen=True, slots=True)
class Column:
    """Where a column's cells go in a row, and what they hold: number, text, dims, flag, or an object in JSON."""

    path: Path
    holds: str


def _columns() -> dict[str, Column]:
    """Every accepted column by name."""
    known = {name: Column(tuple(name.split(".")), holds) for name, holds in _ROW_FIELDS.items()}
    for phase in get_args(Phase):
        known[f"phases_ms.{phase}"] = Column(("phases_ms", phase), NUMBER)
    for name, holds in _WORKLOAD.items():
        size = name in SIZE_FIELDS
        column = Column(("workload", "size", name) if size else ("workload", name), holds)
        full = f"size.{name}" if size else name
        known |= {name: column, full: column, f"workload.{full}": column}
    return known


COLUMNS = _columns()


def _report(errors: Sequence[FieldError], what: str) -> BadInput:
    shown = f" The first {MAX_REPORTED} are listed." if len(errors) > MAX_REPORTED else ""
    count = "1 cell is" if len(errors) == 1 else f"{len(errors)} cells are"
    return BadInput(f"{count} wrong in this {what}; nothing was stored.{shown}", errors=errors[:MAX_REPORTED])


def _header(names: Sequence[str], what: str, known: Mapping[str, Column] = COLUMNS) -> list[Column]:
    """The columns behind a header; unknown and repeated ones are refused by name."""
    errors, columns, taken = [], [], dict[Path, str]()
    for name in names:
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
    # "1_000" is a Python literal and a mistake in data.
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
        found = plain(cell.encode())
    except Malformed as error:
        raise ValueError(cell) from error
    if not isinstance(found, dict):
        raise ValueError(cell)
    return found


_READ: dict[str, tuple[Callable[[str], Any], str]] = {
    NUMBER: (_number, "a number"),
    TEXT: (str, "text"),
    _DIMS: (_dims, "one to three whole numbers as 64x64x1"),
    _FLAG: (_flag, "true or false"),
    _OBJECT: (_object, "an object in JSON"),
}


def _put(row: Row, path: Path, value: Any) -> None:
    for name in path[:-1]:
        row = row.setdefault(name, {})
    row[path[-1]] = value


def _assemble(columns: Sequence[Column], cells: Iterable[Any]) -> Row:
    """One row from its cells; absent (None) cells leave no field."""
    row: Row = {}
    for column, value in zip(columns, cells, strict=True):
        if value is not None:
            _put(row, column.path, value)
    return row


def _measurement(columns: Sequence[Column], cells: Iterable[Any]) -> Row:
    """One measurement from its cells: of a kernel, unless it says otherwise."""
    return _with_kind(_assemble(columns, cells))


def _with_kind(row: Row) -> Row:
    row.setdefault("workload", {}).setdefault("kind", "kernel")
    return row


def read_csv(body: bytes, *, max_rows: int) -> list[Row]:
    """Measurements of a CSV body."""
    return [_with_kind(row) for row in read_columns(body, COLUMNS, max_rows=max_rows)]


def read_columns(body: bytes, known: Mapping[str, Column], *, max_rows: int) -> list[Row]:
    """Rows of a CSV body with a header line of `known` columns, UTF-8, comma separated."""
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
        return _csv_rows(reader, names, _header(names, "CSV", known), max_rows)
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
        rows.append(_assemble(columns, _csv_cells(number, names, columns, cells, errors)))
    if errors:
        raise _report(errors, "CSV")
    return rows


def _csv_cells(
    number: int, names: Sequence[str], columns: Sequence[Column], cells: Sequence[str | None], errors: list[FieldError]
) -> list[Any]:
    values: list[Any] = []
    for name, column, raw in zip(names, columns, cells, strict=True):
        cell, value = (raw or "").strip(), None
        read, wanted = _READ[column.holds]
        try:
            value = read(cell) if cell else None
        except ValueError:
            errors.append(FieldError((number, name), f"{cell[:40]!r} is not {wanted}"))
        values.append(value)
    return values


def rows_of_parquet(table: pa.Table, position: Ints) -> Objects:
    """Rows of a table whose columns have known names, each where `position` says, int [n].

    Cells of the wrong type are refused by column.
    """
    columns = _header(table.column_names, "Parquet file")
    _check_types(table.schema, columns)
    cells = [_plain(table.column(k), column, position) for k, column in enumerate(columns)]
    return Objects([_measurement(columns, row) for row in zip(*cells, strict=True)], position)


def rows_of_text(table: pa.Table, position: Ints) -> Objects:
    """Rows of a table of text whose columns have known names, each where `position` says, int [n]."""
    names, errors = table.column_names, list[FieldError]()
    columns = _header(names, "CSV")
    rows = zip(position.tolist(), *(cells.to_pylist() for cells in table.columns), strict=True)
    read = [_measurement(columns, _csv_cells(number, names, columns, cells, errors)) for number, *cells in rows]
    if errors:
        raise _report(errors, "CSV")
    return Objects(read, position)


def refuse_huge(metadata: Any, max_rows: int) -> None:
    """TooLarge for a Parquet file of too many rows, or of more bytes than are read at once."""
    if metadata.num_rows > max_rows:
        raise TooLarge(f"At most {max_rows} rows are taken at once; this file has {metadata.num_rows}.")
    size = sum(metadata.row_group(k).total_byte_size for k in range(metadata.num_row_groups))
    if size > MAX_PARQUET_BYTES:
        raise TooLarge(f"The Parquet file unpacks to {size} bytes; at most {MAX_PARQUET_BYTES} are read at once.")


def _fits(kind: pa.DataType, holds: str) -> bool:
    if pa.types.is_null(kind):
        return True
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    whole_or_float = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if holds == NUMBER:
        return bool(whole_or_float)
    if holds == _FLAG:
        return bool(pa.types.is_boolean(kind))
    if holds == _DIMS:
        nested = pa.types.is_list(kind) or pa.types.is_large_list(kind)
        return bool(text or pa.types.is_integer(kind) or (nested and pa.types.is_integer(kind.value_type)))
    return bool(text or pa.types.is_timestamp(kind))


def _check_types(schema: pa.Schema, columns: Sequence[Column]) -> None:
    errors = [
        FieldError((field.name,), f"a column of {field.type} where {_READ[column.holds][1]} is wanted")
        for field, column in zip(schema, columns, strict=True)
        if not _fits(field.type, column.holds)
    ]
    if errors:
        raise BadInput("Columns of the Parquet file have the wrong type.", errors=errors)


def moments(times: pa.ChunkedArray) -> pa.ChunkedArray:
    """Times in microseconds, as Python's datetime has them; those beyond its years are 1970, which no row may say.

    Nanoseconds say nothing about when a kernel ran.
    """
    ticks = times.cast(pa.int64())
    most = min(_MOST_S * _TICKS[times.type.unit], 2**63 - 1)
    odd = pc.or_(pc.less(ticks, 0), pc.greater(ticks, most))
    known = pc.if_else(odd, pa.scalar(0, pa.int64()), ticks).cast(times.type)
    return known.cast(pa.timestamp("us", tz=times.type.tz), safe=False)


def _plain(values: pa.ChunkedArray, column: Column, position: Ints) -> list[Any]:
    """Cells of one column as Python values."""
    if pa.types.is_timestamp(values.type):
        values = moments(values)
    cells: list[Any] = values.to_pylist()
    if column.holds in (_DIMS, _OBJECT):
        return [_written(number, column, cell) for number, cell in zip(position.tolist(), cells, strict=True)]
    if pa.types.is_floating(values.type):
        # A data frame keeps whole numbers with gaps as floats.
        return [int(cell) if cell is not None and cell.is_integer() else cell for cell in cells]
    return [cell.isoformat() if isinstance(cell, datetime) else cell for cell in cells]


def _written(number: int, column: Column, cell: Any) -> Any:
    """A cell that may be written as text."""
    read, wanted = _READ[column.holds]
    try:
        return read(cell) if isinstance(cell, str) else cell
    except ValueError:
        error = FieldError((number, ".".join(column.path)), f"{cell[:40]!r} is not {wanted}")
        raise _report([error], "Parquet file") from None


def read_json(body: bytes, *, max_rows: int) -> list[Row]:
    """Rows of a JSON body: a list of objects, already in the API's form."""
    rows = plain(body)
    if not isinstance(rows, list):
        raise BadInput("Send a JSON list of measurements, also for a single one.")
    if len(rows) > max_rows:
        raise TooLarge(f"At most {max_rows} rows are taken at once; this list has {len(rows)}.")
    errors = [FieldError((k,), "a measurement is an object") for k, row in enumerate(rows) if not isinstance(row, dict)]
    if errors:
        raise _report(errors, "list")
    return rows
