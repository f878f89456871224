"""Interface of importers of third-party measurements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.wire.measurement_form import UploadPart

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SkippedRow:
    """A skipped row: its place, and the reason."""

    where: str
    reason: str


@dataclass(frozen=True, slots=True)
class Imported:
    """Content of a folder in the API's terms.

    rows     measurements in the form of POST /measurements
    where    file and line of every row
    figures  GPU name -> measured fields of its specification, SI units
    skipped  rows excluded by the data set's own notes
    notes    which of several files was preferred, and why
    """

    rows: tuple[Row, ...]
    where: tuple[str, ...]
    figures: Mapping[str, Mapping[str, float]]
    skipped: tuple[SkippedRow, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Importer:
    """A measurement format: its command-line name, one line of help, and the reader of a folder."""

    name: str
    read: Callable[[Path], Imported]


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a file that are read together.

    sent      measurements, as objects in the API's form or as operators in columns
    test      bool [n], rows that the data set's authors reserved for testing; None if not stated
    skipped   reason -> number of rows skipped by the reader
    ignored   column -> number of rows, for columns only for human readers
    device    specification of the measured GPU, if the file has one
    host_drift_s  float64 [n], launch-overhead growth already subtracted from `sent`; None if not corrected
    notes     remarks for the user
    """

    file: str
    sent: UploadPart
    test: NDArray[np.bool_] | None
    skipped: Counter[str] = field(default_factory=Counter)
    ignored: Counter[str] = field(default_factory=Counter)
    device: Mapping[str, Any] | None = None
    host_drift_s: NDArray[np.float64] | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PartsImporter:
    """A measurement format for large data: read part by part, each checked and stored before the next."""

    name: str
    read: Callable[[Path], Iterator[Part]]
