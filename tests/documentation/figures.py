"""Figures that a page shows of an answer, in JSON shortened by "..." or in printed lines, and what they are today."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

_TOKEN = re.compile(r'\.\.\.|[{}\[\],:]|"(?:[^"\\]|\\.)*"|-?\d[\d.]*(?:[eE][-+]?\d+)?|true|false|null')
_NUMBER = re.compile(r"(?<![\w.-])\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?![\w-])")
# Numbers of a database, not of a prediction.
_COUNTED = {"id", "upload_id", "job_id"}
_ABSENT = object()


class Figure(NamedTuple):
    """A number in a text: where it stands, and in JSON the keys and positions that lead to it."""

    start: int
    end: int
    path: tuple[str | int, ...] = ()


def updated_json(shown: str, answer: str) -> str:
    """Return shortened JSON with the figures of an answer, where they differ in three digits."""
    whole = json.loads(answer)
    parts, at = [], 0
    for figure in _figures(shown):
        value = _get(whole, figure.path)
        text = shown[figure.start : figure.end]
        if isinstance(value, int | float) and not isinstance(value, bool) and figure.path[-1] not in _COUNTED:
            parts += [shown[at : figure.start], _written(text, float(value))]
            at = figure.end
    return "".join([*parts, shown[at:]])


def updated_line(shown: str, printed: str) -> str:
    """Return a line of a page as it is printed, if its figures differ in three digits; "..." stands for anything."""
    numbers = [[float(each.replace(",", "")) for each in _NUMBER.findall(line)] for line in (shown, printed)]
    if "..." in shown or len(numbers[0]) != len(numbers[1]) or all(map(_alike, *numbers)):
        return shown
    return shown.replace(shown.strip(), printed.strip())


def _figures(shown: str) -> Iterator[Figure]:
    """Yield the numbers of shortened JSON; behind "..." in a list, positions are unknown and left out."""
    path: list[str | int | None] = []
    key = ""
    for token in _TOKEN.finditer(shown):
        text = token[0]
        if text in "{[":
            path.append("" if text == "{" else 0)
        elif text in "}]":
            path.pop()
        elif text == ",":
            path[-1] = path[-1] + 1 if isinstance(path[-1], int) else path[-1]
        elif text == ":":
            path[-1] = key
        elif text == "...":
            path[-1] = path[-1] if isinstance(path[-1], str) else None
        elif text.startswith('"'):
            key = text[1:-1]
        elif text not in ("true", "false", "null") and None not in path:
            yield Figure(*token.span(), tuple(part for part in path if part is not None))


def _get(value: Any, path: tuple[str | int, ...]) -> Any:
    for part in path:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return _ABSENT
    return value


def _written(text: str, value: float) -> str:
    """Return a number as it is written, or with as many decimals if it differs in three digits."""
    today = f"{value:.{len(text.partition('.')[2])}f}"
    if _alike(float(text), value) or float(today) == float(text):
        return text
    return today if float(today) or not value else f"{value:.3g}"


def _alike(one: float, other: float) -> bool:
    return f"{one:.3g}" == f"{other:.3g}" or abs(one - other) <= 6e-3 * abs(other)
