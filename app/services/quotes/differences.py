"""Differences between two answers."""

from __future__ import annotations

from collections.abc import Iterator
from math import isclose
from typing import Any, NamedTuple

MOST = 100
# Sums in another order differ in the last digits; nothing measurable is below this.
TOLERANCE = 1e-9
# Not compared: a reproduced request names its GPUs, so GPUs of "all" are not skipped again.
_LEFT_OUT = ("id", "skipped")


class Difference(NamedTuple):
    """One changed value at `path` in the answer; None stands for a missing value."""

    path: str
    saved: Any
    now: Any


def differences(saved: dict[str, Any], now: dict[str, Any]) -> list[Difference]:
    """Return the first MOST differences between two answers in plain containers."""
    compared = ({name: value for name, value in answer.items() if name not in _LEFT_OUT} for answer in (saved, now))
    found = _walk("", *compared)
    return [difference for difference, _ in zip(found, range(MOST), strict=False)]


def _walk(path: str, saved: Any, now: Any) -> Iterator[Difference]:
    if isinstance(saved, dict) and isinstance(now, dict):
        for name in dict.fromkeys([*saved, *now]):
            yield from _walk(f"{path}.{name}" if path else name, saved.get(name), now.get(name))
    elif isinstance(saved, list) and isinstance(now, list) and len(saved) == len(now):
        for k, (before, after) in enumerate(zip(saved, now, strict=True)):
            yield from _walk(f"{path}.{k}", before, after)
    elif not _same(saved, now):
        yield Difference(path, saved, now)


def _same(saved: Any, now: Any) -> bool:
    if _is_number(saved) and _is_number(now):
        return isclose(saved, now, rel_tol=TOLERANCE)
    return bool(saved == now)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
