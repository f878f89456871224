"""Protocol Buffers on the wire, as far as ONNX files use them (protobuf.dev/programming-guides/encoding).

Files are untrusted: every length is held against what is left, the number of fields read is limited, nothing is
copied but names and small numbers. No schema is compiled and no library needed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MAX_FIELDS = 2_000_000
_MAX_NAME = 512


class Broken(Exception):
    """Bytes that are no such message, and where."""

    def __init__(self, message: str, at: int) -> None:
        super().__init__(f"{message} at byte {at:,}")


class Field(NamedTuple):
    """One field: its number, its wire type, and its value: an integer, or where its bytes are."""

    number: int
    kind: int
    value: int
    start: int
    end: int


class Reader:
    """One file, and how much of it may still be read."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._left = MAX_FIELDS

    def fields(self, start: int, end: int) -> Iterator[Field]:
        """The fields of the message between two places; Broken where there is none."""
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
                    raise Broken(f"field {number} is cut off", at)
                yield Field(number, kind, int.from_bytes(self.data[at:after], "little"), at, after)
            else:
                raise Broken(f"field {number} has wire type {kind}, which no ONNX message has", at)
            at = after

    def varint(self, at: int, end: int) -> tuple[int, int]:
        """A number of 64 bits at most, and the place after it."""
        value = shift = 0
        data = self.data
        while at < end and shift < 70:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & (2**64 - 1), at
            shift += 7
        raise Broken("a number is cut off or too long", at)

    def text(self, field: Field) -> str:
        """A name; what cannot be shown is replaced."""
        if field.kind != BYTES or field.end - field.start > _MAX_NAME:
            raise Broken(f"field {field.number} is no name of at most {_MAX_NAME} bytes", field.start)
        words = self.data[field.start : field.end].decode("utf-8", "replace")
        return words if words.isprintable() else "".join(c if c.isprintable() else "?" for c in words)

    def integers(self, field: Field, most: int) -> list[int]:
        """Signed numbers of a repeated field: one of them, or packed; at most `most`."""
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
        """Numbers of 32 bits: one of them, or packed; at most `most`."""
        span = self.data[field.start : min(field.end, field.start + 4 * most)]
        return [value for (value,) in struct.iter_unpack("<f", span[: len(span) // 4 * 4])]


def signed(value: int) -> int:
    """The int64 that a varint stands for."""
    return value - 2**64 if value >= 2**63 else value
