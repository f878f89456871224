"""What an importer of other people's measurements provides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.wire.measurements.upload import UploadPart

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
    """A form of measurements: its name on the command line, and how to read a folder of it."""

    name: str
    read: Callable[[Path], Imported]


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a file that are read at once.

    sent      measurements, as objects in the API's form or as operators in columns
    test      bool [n], rows that the data set's authors kept for testing; None where they say nothing
    skipped   rows left out before: why, and how many
    ignored   columns that are read by people only: how many rows have them
    device    the specification of the GPU measured on, where the file carries one
    drift_s   float64 [n], what the process that measured had grown slower by, which `sent` is without; None: nothing
    notes     what else whoever brings it in should know
    """

    file: str
    sent: UploadPart
    test: NDArray[np.bool_] | None
    skipped: Counter[str] = field(default_factory=Counter)
    ignored: Counter[str] = field(default_factory=Counter)
    device: Mapping[str, Any] | None = None
    drift_s: NDArray[np.float64] | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PartsImporter:
    """A form of measurements that may be large: read part by part, checked and stored before the next one."""

    name: str
    read: Callable[[Path], Iterator[Part]]
