"""Reader of the Protocol Buffers wire format, as far as ONNX uses it (protobuf.dev/programming-guides/encoding).

Files are untrusted: every length is checked against the remaining bytes, the number of fields is limited, and only
names and small numbers are copied. It needs no compiled schema and no library.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MAX_FIELDS = 2_000_000
_MAX_NAME = 512


class Broken(Exception):
    """Invalid bytes, with their position."""

    def __init__(self, message: str, at: int) -> None:
        super().__init__(f"{message} at byte {at:,}")


class Field(NamedTuple):
    """One field: number, wire type, and its integer value or the range of its bytes."""

    number: int
    kind: int
    value: int
    start: int
    end: int


class Reader:
    """Reader of one file, with a limit on the number of fields."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._left = MAX_FIELDS

    def fields(self, start: int, end: int) -> Iterator[Field]:
        """Yield the fields of the message between two positions; raises Broken."""
        at = start
        while at < end:
            self._left -= 1
            if self._left < 0:
                raise Broken(f"more than {MAX_FIELDS:,} fields", at)
            key, at = self.varint(at, end)
            number, kind = key >> 3, key & 7
            if number == 0:
                raise Broken("a field without a number", at)
            if kind == VARINT:
                value, after = self.varint(at, end)
                yield Field(number, kind, value, at, after)
            elif kind == BYTES:
                length, at = self.varint(at, end)
                after = at + length
                if after > end:
                    raise Broken(f"field {number} says {length:,} bytes where {end - at:,} are left", at)
                yield Field(number, kind, 0, at, after)
            elif kind in (FIXED32, FIXED64):
                after = at + (4 if kind == FIXED32 else 8)
                if after > end:
                    raise Broken(f"field {number} is truncated", at)
                yield Field(number, kind, int.from_bytes(self.data[at:after], "little"), at, after)
            else:
                raise Broken(f"field {number} has wire type {kind}, which no ONNX message has", at)
            at = after

    def varint(self, at: int, end: int) -> tuple[int, int]:
        """Return a number of at most 64 bits, and the position after it."""
        value = shift = 0
        data = self.data
        while at < end and shift < 70:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & (2**64 - 1), at
            shift += 7
        raise Broken("a number is truncated or too long", at)

    def text(self, field: Field) -> str:
        """Return a name, with unprintable characters replaced."""
        if field.kind != BYTES or field.end - field.start > _MAX_NAME:
            raise Broken(f"field {field.number} is no name of at most {_MAX_NAME} bytes", field.start)
        text = self.data[field.start : field.end].decode("utf-8", "replace")
        return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)

    def integers(self, field: Field, most: int) -> list[int]:
        """Return the signed numbers of a repeated field, single or packed, at most `most`."""
        if field.kind == VARINT:
            return [signed(field.value)]
        at, values = field.start, list[int]()
        while at < field.end:
            if len(values) >= most:
                raise Broken(f"more than {most} numbers", at)
            value, at = self.varint(at, field.end)
            values.append(signed(value))
        return values

    def reals(self, field: Field, most: int) -> list[float]:
        """Return 32-bit floats of a repeated field, single or packed, at most `most`."""
        span = self.data[field.start : min(field.end, field.start + 4 * most)]
        return [value for (value,) in struct.iter_unpack("<f", span[: len(span) // 4 * 4])]


def signed(value: int) -> int:
    """Return the int64 of a varint."""
    return value - 2**64 if value >= 2**63 else value
