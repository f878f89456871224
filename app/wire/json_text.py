"""JSON as it came, before anything is made of it: nested no deeper than is read, and no name twice in one object.

A decoder would keep the last of two values, and the caller would never learn that the first was not heard. The bytes
are looked through once, by compiled code: a kernel's request takes a microsecond.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.errors import MAX_ERRORS, FieldError, Malformed
from app.runtime.compiled import compiled

Names = NDArray[np.uint64]
Path = tuple[str | int, ...]

# Objects and lists inside one another; whatever reads them calls itself as often.
MOST_DEPTH = 100
# Names of all objects that are open at one place; of more, whether one stands twice is found in another way.
_MOST_NAMES = 256
_SOUND, _DEEP, _DOUBTFUL = range(3)
_QUOTE, _BACKSLASH, _COLON = b'"\\:'
_SOLIDUS, _UNICODE = b"/u"
_SPACE, _TAB, _NEWLINE, _RETURN = b" \t\n\r"
_OPEN_OBJECT, _CLOSE_OBJECT, _OPEN_LIST, _CLOSE_LIST = b"{}[]"
# FNV-1a.
_HASH_OF_NOTHING, _HASH_STEP = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)


def refuse_unsound(body: bytes) -> None:
    """Malformed where JSON is nested too deeply, or where an object has a name twice: which, and where.

    Of a body that is no JSON nothing is said: whoever decodes it does.
    """
    found = _looked_through(body)
    if found == _DEEP:
        raise Malformed(f"The body is nested too deeply: at most {MOST_DEPTH} levels are read.")
    if found == _DOUBTFUL and (errors := _repeated(body)):
        where = ".".join(str(part) for part in errors[0].loc)
        raise Malformed(f"{where}: {errors[0].msg}", errors=errors)


def every_value(raw: Any) -> Iterator[tuple[Path, Any]]:
    """Each value within plain containers, itself included, with its path."""
    left: list[tuple[Path, Any]] = [((), raw)]
    while left:
        path, value = left.pop()
        yield path, value
        inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        left += [((*path, part), item) for part, item in inner]


@compiled
def _looked_through(text: bytes) -> int:
    """SOUND, DEEP, or DOUBTFUL: two names of one object are alike, or cannot be told apart by their bytes alone."""
    first, names = np.empty(MOST_DEPTH + 1, dtype=np.intp), np.empty(_MOST_NAMES, dtype=np.uint64)
    depth, count, k = 0, 0, 0
    while k < len(text):
        char = text[k]
        k += 1
        if char == _QUOTE:
            k, name, other = _string(text, k)
            if k < len(text) and text[k] == _COLON and depth > 0:
                if other or count == _MOST_NAMES or _stands(names, name, first[depth], count):
                    return _DOUBTFUL
                names[count] = name
                count += 1
        elif char in (_OPEN_OBJECT, _OPEN_LIST):
            depth += 1
            if depth > MOST_DEPTH:
                return _DEEP
            first[depth] = count
        elif char in (_CLOSE_OBJECT, _CLOSE_LIST) and depth > 0:
            count = first[depth]
            depth -= 1
    return _SOUND


@compiled
def _string(text: bytes, k: int) -> tuple[int, np.uint64, bool]:
    """Behind a string that begins at `k`: where the next token begins, its hash, whether it can be spelt otherwise."""
    name, other = _HASH_OF_NOTHING, False
    while k < len(text) and text[k] != _QUOTE:
        if text[k] == _BACKSLASH and k + 1 < len(text):  # what it escapes may be a quote
            k += 1
            other |= text[k] in (_SOLIDUS, _UNICODE)
        name = (name ^ np.uint64(text[k])) * _HASH_STEP
        k += 1
    k += 1
    while k < len(text) and text[k] in (_SPACE, _TAB, _NEWLINE, _RETURN):
        k += 1
    return k, name, other


@compiled
def _stands(names: Names, name: np.uint64, first: int, stop: int) -> bool:
    """Whether a name is among those from `first` on."""
    k = first
    while k < stop and names[k] != name:
        k += 1
    return k < stop


class _Repeating(dict[str, Any]):
    """An object of which some names stood more than once."""

    def __init__(self, pairs: Sequence[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.repeated = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]


def _repeated(body: bytes) -> list[FieldError]:
    """Names that stand more than once in their object, at most MAX_ERRORS; none in a body that is no JSON."""
    repeating = False

    def made(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal repeating
        plain = dict(pairs)
        if len(plain) == len(pairs):
            return plain
        repeating = True
        return _Repeating(pairs)

    try:
        whole = json.loads(body, object_pairs_hook=made)
    except (ValueError, RecursionError):
        return []
    if not repeating:  # escapes only, as most often: then every place in a long body need not be looked at
        return []
    objects = ((path, value) for path, value in every_value(whole) if isinstance(value, _Repeating))
    places = ((*path, name) for path, value in objects for name in value.repeated)
    return [FieldError(place, "stands more than once") for place in islice(places, MAX_ERRORS)]
