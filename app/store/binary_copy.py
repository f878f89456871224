"""PostgreSQL's binary COPY for rows of fixed-width cells, without a Python object per cell.

A row is a count of its cells (int16), then each cell as its length (int32, -1: NULL) and its bytes, numbers big-endian;
an array cell is [dimensions, nulls, element type, length, lower bound] as int32, then its elements as cells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

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


def decode(cells: Sequence[Cell], body: bytes | bytearray) -> NDArray[Any]:
    """Return the rows of a binary COPY without NULLs as a structured array, whose columns `values_of` reads."""
    form = _form(cells, [True] * len(cells))
    size = len(body) - len(SIGNATURE) - len(TRAILER)
    return np.frombuffer(body, dtype=form, count=size // form.itemsize, offset=len(SIGNATURE))


def values_of(rows: NDArray[Any], cell: Cell) -> NDArray[Any]:
    """Return one column of `decode`'s rows in native byte order, [n] or [n, elements]."""
    values = rows[cell.name] if cell.elements is None else rows[cell.name]["value"]
    if cell.kind == "uuid":
        return np.ascontiguousarray(values).view(np.uint8).reshape(-1, 16)
    return values.astype(values.dtype.newbyteorder("="))
