"""What an importer of other people's measurements provides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Skipped:
    """A row that was left out: where it stood, and why."""

    where: str
    reason: str


@dataclass(frozen=True, slots=True)
class Imported:
    """What a folder holds, in the API's terms.

    rows     measurements in the form of POST /measurements
    where    file and line of every row
    figures  GPU's name -> measured fields of its specification, SI units
    skipped  rows that the data set's own notes rule out
    notes    which of several files was preferred, and why
    """

    rows: tuple[Row, ...]
    where: tuple[str, ...]
    figures: Mapping[str, Mapping[str, float]]
    skipped: tuple[Skipped, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Importer:
    """A form of measurements: its name on the command line, one line of help, and how to read a folder of it."""

    name: str
    summary: str
    read: Callable[[Path], Imported]
