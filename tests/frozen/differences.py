"""Differences between two sets of answers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from tests.frozen.answers import Answers

TOLERANCE = 1e-9
_ABSENT = object()  # a field that an answer lacks, which is not null


def differences(old: Answers, new: Answers) -> dict[str, list[str]]:
    """Return what differs by the request's name: the place in the answer, then the old and the new value."""
    different: dict[str, list[str]] = {}
    for name in dict.fromkeys([*old.answers, *new.answers]):
        if name not in old.answers or name not in new.answers:
            different[name] = ["the request is not in the file" if name not in old.answers else "no such request"]
        elif lines := list(_compared(old.answers[name], new.answers[name], "", old.texts | new.texts)):
            different[name] = lines
    return different


def _compared(old: Any, new: Any, place: str, texts: dict[str, str]) -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys([*old, *new]):
            yield from _compared(old.get(key, _ABSENT), new.get(key, _ABSENT), f"{place}.{key}", texts)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from _compared(before, after, f"{place}[{number}]", texts)
    elif not _equal(old, new):
        yield f"{place}: {_shown(old, texts)} -> {_shown(new, texts)}"


def _equal(old: Any, new: Any) -> bool:
    if isinstance(old, bool) or isinstance(new, bool) or not isinstance(old, int | float):
        return bool(old == new)
    return isinstance(new, int | float) and math.isclose(old, new, rel_tol=TOLERANCE)


def _shown(value: Any, texts: dict[str, str]) -> str:
    if value is _ABSENT:
        return "absent"
    return texts.get(value.removeprefix("#"), value) if isinstance(value, str) else repr(value)
