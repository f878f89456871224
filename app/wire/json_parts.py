"""Decode long JSON in parts: other threads, and the event loop with all other requests, wait while msgspec decodes one.

The outermost list or object is cut between its values into parts that take a millisecond; so is each value that is
longer than that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from app.runtime.compiled import compiled
from app.tables.arrays import Ints

PART_BYTES = 262_144
# The name of a member, and the colon behind it.
_NAME = re.compile(rb'\s*("(?:[^"\\]|\\.){0,1000}")\s*:', re.DOTALL)
_QUOTE, _BACKSLASH, _COMMA = b'"\\,'
_SPACE, _TAB, _NEWLINE, _RETURN = b" \t\n\r"
_OPEN_OBJECT, _CLOSE_OBJECT, _OPEN_LIST, _CLOSE_LIST = b"{}[]"


def list_length(text: bytes) -> int:
    """Return the number of values of a JSON list, which is not decoded: 1 of an empty one, 0 of what is no list."""
    text = text.lstrip()
    return _commas(text) + 1 if text[:1] == b"[" else 0


def decode_in_parts(text: bytes) -> Any:
    """Return any JSON document in plain containers. Raises msgspec.DecodeError or UnicodeDecodeError."""
    return _decode(memoryview(text))


def _decode(text: memoryview) -> Any:
    """Return the value of a view, of which no more than a part is copied."""
    if len(text) <= PART_BYTES:
        return msgspec.json.decode(text)
    text = _stripped(text)
    parts = list(_parts(text))
    ends = bytes(text[:1]) + bytes(text[-1:])
    if ends == b"[]" and all(parts):
        return [value for part in parts for value in _items(part)]
    if ends == b"{}" and all(parts):
        return {name: value for part in parts for name, value in _members(part).items()}
    return msgspec.json.decode(text)


def _parts(text: memoryview) -> Iterator[memoryview]:
    """Yield the text of consecutive values, without the commas between these parts."""
    first = 1
    for last in [*_cuts(text, PART_BYTES).tolist(), len(text) - 1]:
        yield _stripped(text[first:last])
        first = last + 1


def _stripped(text: memoryview) -> memoryview:
    first, last = _inside(text)
    return text[first:last]


def _items(part: memoryview) -> list[Any]:
    """Return the values of a part of a list; a longer part is one value."""
    if len(part) > 2 * PART_BYTES:
        return [_decode(part)]
    items: list[Any] = msgspec.json.decode(b"[" + part + b"]")
    return items


def _members(part: memoryview) -> dict[str, Any]:
    """Return the values of a part of an object, by name; a longer part is one value with its name."""
    if len(part) > 2 * PART_BYTES and (name := _NAME.match(part)):
        return {msgspec.json.decode(name[1]): _decode(part[name.end() :])}
    members: dict[str, Any] = msgspec.json.decode(b"{" + part + b"}")
    return members


@compiled
def _inside(text: memoryview) -> tuple[int, int]:
    """Return where a text begins and ends without the white space around it."""
    first, last = 0, len(text)
    while first < last and text[first] in (_SPACE, _TAB, _NEWLINE, _RETURN):
        first += 1
    while last > first and text[last - 1] in (_SPACE, _TAB, _NEWLINE, _RETURN):
        last -= 1
    return first, last


@compiled
def _commas(text: bytes) -> int:
    """Return the number of commas between the outermost values."""
    count, depth, quoted, k = 0, 0, False, 0
    while k < len(text):
        char = text[k]
        if char == _BACKSLASH:
            k += 1
        elif char == _QUOTE:
            quoted = not quoted
        elif quoted:
            pass
        elif char in (_OPEN_OBJECT, _OPEN_LIST):
            depth += 1
        elif char in (_CLOSE_OBJECT, _CLOSE_LIST):
            depth -= 1
        elif char == _COMMA and depth == 1:
            count += 1
        k += 1
    return count


@compiled
def _cuts(text: memoryview, size: int) -> Ints:
    """Return positions of commas between the outermost values: around a value of `size` bytes, or after as many."""
    cuts, count, depth, cut, comma, quoted, k = np.empty(2 * (len(text) // size + 2), np.intp), 0, 0, 0, 0, False, 0
    while k < len(text):
        char = text[k]
        if char == _BACKSLASH:
            k += 1
        elif char == _QUOTE:
            quoted = not quoted
        elif quoted:
            pass
        elif char in (_OPEN_OBJECT, _OPEN_LIST):
            depth += 1
        elif char in (_CLOSE_OBJECT, _CLOSE_LIST):
            depth -= 1
        if not quoted and ((char == _COMMA and depth == 1) or (k == len(text) - 1)):
            if k - comma >= size and comma > cut:  # the value between is long
                cuts[count] = comma
                count += 1
                cut = comma
            if char == _COMMA and k - cut >= size:
                cuts[count] = k
                count += 1
                cut = k
            comma = k
        k += 1
    return cuts[:count]
