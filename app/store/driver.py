"""What psycopg does and SQLAlchemy does not: COPY, binary COPY, and several statements in one round trip (a pipeline).

`Database.begin` reports psycopg's errors. Binary COPY takes rows of fixed-width cells, without a Python object per
cell. A row is a count of its cells (int16), then each cell as its length (int32, -1: NULL) and its bytes, numbers
big-endian; an array cell is [dimensions, nulls, element type, length, lower bound] as int32, then its elements as
cells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import numpy as np
import psycopg
from numpy.typing import NDArray
from psycopg import sql
from sqlalchemy import Connection

SIGNATURE = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"
# Types of PostgreSQL: their numbers, and their bytes as NumPy spells them.
_OID = {"float8": 701, "int4": 23}
_BYTES = {"float8": ">f8", "int4": ">i4", "int8": ">i8", "uuid": "V16"}
_HEADER = ("dimensions", "nulls", "type", "length", "lower")


@dataclass(frozen=True, slots=True)
class Cell:
    """A column: its type, and its number of elements if it is an array."""

    name: str
    kind: str
    elements: int | None = None


def _form(cells: Sequence[Cell], present: Sequence[bool]) -> np.dtype[Any]:
    """Return the dtype of one row's bytes."""
    parts: list[Any] = [("cells", ">i2")]
    for cell, there in zip(cells, present, strict=True):
        parts.append((f"{cell.name} bytes", ">i4"))
        if not there:
            continue
        if cell.elements is None:
            parts.append((cell.name, _BYTES[cell.kind]))
        else:
            element = np.dtype([("bytes", ">i4"), ("value", _BYTES[cell.kind])])
            parts += [(f"{cell.name} {part}", ">i4") for part in _HEADER]
            parts.append((cell.name, element, (cell.elements,)))
    return np.dtype(parts)


def encode(cells: Sequence[Cell], columns: Mapping[str, NDArray[Any] | None], n: int) -> bytes:
    """Return n rows in the format of binary COPY, without signature and trailer.

    A column is [n], [n, 16] for UUID bytes, or [n, elements] for arrays; None is NULL in every row.
    """
    present = [columns[cell.name] is not None for cell in cells]
    rows = np.zeros(n, dtype=_form(cells, present))
    rows["cells"] = len(cells)
    for cell in cells:
        values = columns[cell.name]
        if values is None:
            rows[f"{cell.name} bytes"] = -1
        elif cell.elements is None:
            width = np.dtype(_BYTES[cell.kind]).itemsize
            rows[f"{cell.name} bytes"] = width
            rows[cell.name] = np.ascontiguousarray(values).view("V16").ravel() if cell.kind == "uuid" else values
        else:
            width = np.dtype(_BYTES[cell.kind]).itemsize
            rows[f"{cell.name} bytes"] = 4 * len(_HEADER) + cell.elements * (4 + width)
            head = (1, 0, _OID[cell.kind], cell.elements, 1)
            for part, value in zip(_HEADER, head, strict=True):
                rows[f"{cell.name} {part}"] = value
            rows[cell.name]["bytes"] = width
            rows[cell.name]["value"] = values
    return rows.tobytes()


def values_of(rows: NDArray[Any], cell: Cell) -> NDArray[Any]:
    """Return one column of `copy_out`'s rows in native byte order, [n] or [n, elements]."""
    values = rows[cell.name] if cell.elements is None else rows[cell.name]["value"]
    if cell.kind == "uuid":
        return np.ascontiguousarray(values).view(np.uint8).reshape(-1, 16)
    return values.astype(values.dtype.newbyteorder("="))


def driver_of(connection: Connection) -> psycopg.Connection[Any]:
    """Return psycopg's connection under SQLAlchemy's."""
    driver: Any = connection.connection.driver_connection
    return cast("psycopg.Connection[Any]", driver)


def run(connection: Connection, statements: str) -> None:
    """Run statements without parameters in one round trip, unprepared."""
    driver_of(connection).execute(statements.encode(), prepare=False)


def copy_in(connection: Connection, statement: str, parts: Iterable[bytes]) -> None:
    """Run COPY ... FROM STDIN with encoded rows."""
    with driver_of(connection).cursor() as cursor, cursor.copy(statement.encode()) as copy:
        copy.write(SIGNATURE)
        for part in parts:
            copy.write(part)
        copy.write(TRAILER)


def copy_out(
    connection: Connection, statement: str, given: Sequence[Any], cells: Sequence[Cell], most: int
) -> Iterator[NDArray[Any]]:
    """Yield the rows of a binary COPY ... TO STDOUT with parameters `given`, without NULLs, at most `most` at a time.

    They are structured arrays, whose columns `values_of` reads. The connection is in use until the last one.
    """
    form, body, first = _form(cells, [True] * len(cells)), bytearray(), len(SIGNATURE)
    full = most * form.itemsize
    with driver_of(connection).cursor() as cursor, cursor.copy(statement.encode(), given) as copy:
        for part in _received(driver_of(connection), copy):
            body += part
            if len(body) >= first + full:
                yield np.frombuffer(bytes(body[first : first + full]), dtype=form)
                del body[: first + full]
                first = 0
    if rest := (len(body) - first) // form.itemsize:
        yield np.frombuffer(body, dtype=form, count=rest, offset=first)


def _received(driver: psycopg.Connection[Any], copy: psycopg.Copy) -> Iterator[bytes | bytearray | memoryview]:
    """Yield the parts of a binary COPY, a row each: psycopg takes 7 us for one, and 1 us of those that are there."""
    ends = TRAILER, SIGNATURE + TRAILER  # after which psycopg must see that there are no more
    for part in copy:
        yield part
        ended = part in ends
        while not ended:
            size, ready = driver.pgconn.get_copy_data(1)
            if size == _ENDED:  # before the last part: by an error
                raise _error_of(driver)
            if not size:
                break
            yield ready
            ended = ready in ends


# What libpq returns in place of a size once there is no more.
_ENDED = -1


def _error_of(driver: psycopg.Connection[Any]) -> psycopg.Error:
    """Return the error that ended a COPY; the connection is in order afterwards."""
    result = driver.pgconn.get_result()
    while driver.pgconn.get_result() is not None:
        pass
    if result is None:
        return psycopg.OperationalError("the COPY ended without its result")
    return psycopg.errors.error_from_result(result)


def read_copy(connection: Connection, statement: sql.Composed, write: Callable[[bytes], object]) -> int:
    """Hand the output of COPY ... TO STDOUT to `write`, part by part; returns the number of rows."""
    with driver_of(connection).cursor() as cursor:
        with cursor.copy(statement) as copy:
            for part in copy:
                write(bytes(part))
        return cursor.rowcount


def write_copy(connection: Connection, statement: sql.Composed, parts: Iterable[bytes]) -> int:
    """Run COPY ... FROM STDIN with these parts; returns the number of rows."""
    with driver_of(connection).cursor() as cursor:
        with cursor.copy(statement) as copy:
            for part in parts:
                copy.write(part)
        return cursor.rowcount


T = TypeVar("T")
Rows = Sequence[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Question(Generic[T]):
    """A statement of SQL with parameters written %s, and what its rows mean."""

    statement: str
    given: Sequence[Any]
    answer: Callable[[Rows], T]


def ask(connection: Connection, *questions: Question[Any]) -> list[Any]:
    """Return the answers to the questions, which are asked in this order."""
    driver = driver_of(connection)
    with nullcontext() if len(questions) == 1 else driver.pipeline():
        cursors = [driver.execute(each.statement.encode(), each.given) for each in questions]
    rows = [cursor.fetchall() if cursor.description else [] for cursor in cursors]
    return [each.answer(fetched) for each, fetched in zip(questions, rows, strict=True)]


def scalars(rows: Rows) -> list[Any]:
    """Return the first column."""
    return [row[0] for row in rows]
