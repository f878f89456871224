"""Read measurements from Parquet into the API's JSON form."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from app.errors import BadInput, FieldError
from app.tables.arrays import Ints
from app.wire.measurements.row_columns import (
    DIMS,
    FLAG,
    NUMBER,
    OBJECT,
    READ,
    Column,
    cell_errors,
    header,
    measurement,
)
from app.wire.measurements.upload import Objects

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
