"""Fitted and chosen constants by name, from seed_data/coefficients: a file a room, with value, unit and source each.

Code reads a constant once, at import, as a plain number. `set_on` names the data sets that were in view when a constant
was chosen: what is compared with these is in-sample.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from hashlib import blake2b
from typing import Any, NamedTuple

from app.config import SEED_DATA

FOLDER = SEED_DATA / "coefficients"


class Coefficient(NamedTuple):
    """One entry of a file.

    value    a number, an array of numbers, or numbers by name
    unit     of the value; "1" for a ratio, "ln" for a half-width in log space
    source   what it stands on: the data, the paper or the data sheet
    set_on   data sets in view when it was chosen, by the names of the docs
    families  families of operators that it is of alone; none: of no certain ones
    command  the command that fits it again, or
    chosen   how it was chosen from its source, where no command fits it
    """

    value: Any
    unit: str
    source: str
    set_on: tuple[str, ...]
    families: tuple[str, ...] = ()
    command: str | None = None
    chosen: str | None = None


@cache
def room(name: str) -> Mapping[str, Coefficient]:
    """Return the coefficients of a room by name. Raises FileNotFoundError for none."""
    content = json.loads((FOLDER / f"{name}.json").read_bytes())
    for entry in content.values():
        entry |= {field: tuple(entry.get(field, ())) for field in ("set_on", "families")}
    return {key: Coefficient(**entry) for key, entry in content.items()}


def rooms() -> list[str]:
    """Return the names of all rooms, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


class Coefficients:
    """Values of one room, typed by how they are read. KeyError for a name that it lacks."""

    def __init__(self, name: str) -> None:
        self._room = room(name)

    def number(self, name: str) -> float:
        """Return a number."""
        return float(self._room[name].value)

    def numbers(self, name: str) -> tuple[float, ...]:
        """Return an array of numbers."""
        return tuple(map(float, self._room[name].value))

    def each(self, *names: str) -> tuple[float, ...]:
        """Return several numbers, in the order of their names."""
        return tuple(map(self.number, names))

    def rows(self, name: str) -> tuple[tuple[float, ...], ...]:
        """Return arrays of numbers, one a row."""
        return tuple(tuple(map(float, row)) for row in self._room[name].value)

    def tuples_by_name(self, name: str) -> dict[str, tuple[float, ...]]:
        """Return arrays of numbers by name."""
        return {key: tuple(map(float, values)) for key, values in self._room[name].value.items()}

    def by_name(self, name: str) -> dict[str, float]:
        """Return numbers by name."""
        return {key: float(value) for key, value in self._room[name].value.items()}


def set_on(data: str, family: str | None = None) -> list[str]:
    """Return the coefficients, or those of a family of operators, chosen with a data set in view, as `room.name`."""
    every = ((name, key, entry) for name in rooms() for key, entry in room(name).items())
    return [
        f"{name}.{key}"
        for name, key, entry in every
        if data in entry.set_on and (family is None or family in entry.families)
    ]


@cache
def digest() -> str:
    """Return a digest of all values: compiled code holds them as constants."""
    values = {name: {key: entry.value for key, entry in room(name).items()} for name in rooms()}
    return blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=8).hexdigest()
