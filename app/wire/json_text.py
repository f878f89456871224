"""Check JSON text before decoding, and decode long texts in parts.

Checked are nesting depth, the number of names, values and containers, and repeated names: a decoder would keep the last
of two values and silently drop the first, and makes an object of 50 bytes or more of each value of two bytes. The bytes
are scanned once, by compiled code: a kernel request takes a microsecond.

Other threads, and the event loop with all other requests, wait while msgspec decodes one text. So the outermost list or
object of a long one is cut between its values into parts that take a millisecond; so is each value that is longer.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from app.errors import MAX_ERRORS, FieldError, Malformed
from app.runtime.compiled import compiled
from app.tables.arrays import Ints

Names = NDArray[np.uint64]
Places = NDArray[np.int32]
Path = tuple[str | int, ...]

# Limit on nested objects and lists: recursive readers go as deep.
MOST_DEPTH = 100
# Limit on the names of all open objects: `quantized_layers` of a mixture names 22,000 modules.
MOST_NAMES = 65_536
# Names that the first scan has room for: few requests have more, and little memory is filled for the others.
_USUAL_NAMES = 128
# Most names compared with a new one. Names are dealt to half as many buckets as there may be names, so that only names
# made to share one are more; they are refused, since comparing each with all others takes quadratic time.
_MOST_COMPARED = 64
# Limit on values: a million rows of eight columns, 0.5 GB decoded.
MOST_VALUES = 8_000_000
# Limit on lists and objects, of 60 and 230 bytes or more: the largest graph has as many.
MOST_CONTAINERS = 1_500_000
# Longer bodies are not decoded to describe what is wrong with them: that takes longer than a valid body.
EXPLAINED_BYTES = 65_536
_VALID, _TOO_DEEP, _TOO_MANY_NAMES, _TOO_MANY_VALUES, _TOO_MANY_CONTAINERS, _MAY_REPEAT = range(6)
_QUOTE, _BACKSLASH, _COLON = b'"\\:'
_SOLIDUS, _UNICODE = b"/u"
_SPACE, _TAB, _NEWLINE, _RETURN = b" \t\n\r"
_OPEN_OBJECT, _CLOSE_OBJECT, _OPEN_LIST, _CLOSE_LIST, _COMMA = b"{}[],"
# FNV-1a.
_HASH_OF_NOTHING, _HASH_STEP = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)


def check_json_text(body: bytes) -> None:
    """Raise Malformed if JSON has too many levels, names, values or containers, or if an object repeats a name (named).

    A body that is not JSON passes: the decoder reports it.
    """
    result, first, last = _scan(body, _USUAL_NAMES)
    if result == _TOO_MANY_NAMES:
        result, first, last = _scan(body, MOST_NAMES)
    if result == _TOO_DEEP:
        raise Malformed(f"The body is nested too deeply: at most {MOST_DEPTH} levels are read.")
    if result == _TOO_MANY_NAMES:
        raise Malformed(f"The body has too many names: at most {MOST_NAMES:,} in the objects around a value are read.")
    if result == _TOO_MANY_VALUES:
        raise Malformed(f"The body has too many values: at most {MOST_VALUES:,} are read from JSON.")
    if result == _TOO_MANY_CONTAINERS:
        raise Malformed(f"The body has too many lists and objects: at most {MOST_CONTAINERS:,} are read from JSON.")
    if result == _MAY_REPEAT and (errors := _repeated(body, body[first:last])):
        where = ".".join(str(part) for part in errors[0].loc)
        raise Malformed(f"{where}: {errors[0].msg}", errors=errors)


def every_value(raw: Any) -> Iterator[tuple[Path, Any]]:
    """Yield each value within plain containers, `raw` included, with its path."""
    left: list[tuple[Path, Any]] = [((), raw)]
    while left:
        path, value = left.pop()
        yield path, value
        inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        left += [((*path, part), item) for part, item in inner]


@compiled
def _scan(text: bytes, most_names: int) -> tuple[int, int, int]:
    """Return the result, and for _MAY_REPEAT the place of a name that may equal another of its object.

    Names of open objects are in a stack, and chained by hash: `latest` has the last name of each bucket, `before` the
    one before each name. A closed object's names are taken off both. `most_names` is a power of two.
    """
    first, names = np.empty(MOST_DEPTH + 1, dtype=np.intp), np.empty(most_names, dtype=np.uint64)
    latest, before = np.full(most_names // 2, -1, dtype=np.int32), np.empty(most_names, dtype=np.int32)
    mask = np.uint64(len(latest) - 1)
    depth, count, values, containers, k = 0, 0, 0, 0, 0
    while k < len(text) and values <= MOST_VALUES:
        char = text[k]
        k += 1
        if char == _QUOTE:
            start = k
            k, end, name, other = _hash_string(text, k)
            if k < len(text) and text[k] == _COLON and depth > 0:
                bucket = name & mask
                compared = _compared(names, before, name, latest[bucket], first[depth])
                if other or compared < 0:
                    return _MAY_REPEAT, start, end
                if count == most_names or compared > _MOST_COMPARED:
                    return _TOO_MANY_NAMES, 0, 0
                names[count], before[count] = name, latest[bucket]
                latest[bucket] = count
                count += 1
        elif char in (_OPEN_OBJECT, _OPEN_LIST):
            values += 1
            containers += 1
            depth += 1
            if depth > MOST_DEPTH:
                return _TOO_DEEP, 0, 0
            if containers > MOST_CONTAINERS:
                return _TOO_MANY_CONTAINERS, 0, 0
            first[depth] = count
        elif char in (_CLOSE_OBJECT, _CLOSE_LIST) and depth > 0:
            while count > first[depth]:
                count -= 1
                latest[names[count] & mask] = before[count]
            depth -= 1
        elif char == _COMMA:
            values += 1
    return _VALID if values <= MOST_VALUES else _TOO_MANY_VALUES, 0, 0


@compiled
def _compared(names: Names, before: Places, name: np.uint64, k: int, first: int) -> int:
    """Return how many names were compared, of the chain from `k` back to `first`; -1 where one is the same."""
    compared = 0
    while k >= first and compared <= _MOST_COMPARED:
        if names[k] == name:
            return -1
        compared += 1
        k = before[k]
    return compared


@compiled
def _hash_string(text: bytes, k: int) -> tuple[int, int, np.uint64, bool]:
    """Return where what follows a string from `k` begins, where it ends, its hash, and if it has other spellings."""
    name, other = _HASH_OF_NOTHING, False
    while k < len(text) and text[k] != _QUOTE:
        if text[k] == _BACKSLASH and k + 1 < len(text):  # the escaped character may be a quote
            k += 1
            other |= text[k] in (_SOLIDUS, _UNICODE)
        name = (name ^ np.uint64(text[k])) * _HASH_STEP
        k += 1
    end = k
    k += 1
    while k < len(text) and text[k] in (_SPACE, _TAB, _NEWLINE, _RETURN):
        k += 1
    return k, end, name, other


class _RepeatedNames(dict[str, Any]):
    """A decoded object with repeated names."""

    def __init__(self, pairs: Sequence[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.repeated = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]


def _repeated(body: bytes, name: bytes) -> list[FieldError]:
    """Return names that occur more than once in their object, at most MAX_ERRORS; none if the body is not JSON.

    Of a long body only the one that was found.
    """
    if len(body) > EXPLAINED_BYTES:
        message = "is written with escapes" if b"\\" in name else "appears more than once"
        return [FieldError((name[:100].decode(errors="replace"),), message)]
    repeating = False

    def build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal repeating
        plain = dict(pairs)
        if len(plain) == len(pairs):
            return plain
        repeating = True
        return _RepeatedNames(pairs)

    try:
        whole = json.loads(body, object_pairs_hook=build)
    except (ValueError, RecursionError):
        return []
    if not repeating:  # the usual case, only escapes: skip the walk over a long body
        return []
    objects = ((path, value) for path, value in every_value(whole) if isinstance(value, _RepeatedNames))
    places = ((*path, name) for path, value in objects for name in value.repeated)
    return [FieldError(place, "appears more than once") for place in islice(places, MAX_ERRORS)]


PART_BYTES = 131_072
# The name of a member, and the colon behind it.
_NAME = re.compile(rb'\s*("(?:[^"\\]|\\.){0,1000}")\s*:', re.DOTALL)


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
