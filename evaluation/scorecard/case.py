"""A measured workload of the scorecard, as requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Row = Mapping[str, Any]


class Part(NamedTuple):
    """A workload of POST /predict that a measured time contains `times` times."""

    times: float
    workload: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """One measured time or energy and the requests whose sum it is.

    gpu         id in the catalogue, or the source's name of a device that is not in it
    model       network, by the source's name
    mode        what was measured: the kind of step, and what else results are split by (format, stack)
    row         what identifies the measurement within its source
    measured    seconds or joules, as `unit` says
    parts       the requests; empty if it cannot be asked
    reason      why it cannot be asked
    at_once     True if it cannot be asked where it does not fit in the memory: it was run in waves
    """

    gpu: str
    model: str
    mode: str
    row: str
    measured: float
    parts: tuple[Part, ...] = ()
    reason: str = ""
    at_once: bool = False
    unit: Literal["s", "J"] = "s"


class Goal(NamedTuple):
    """Largest median absolute error, percent, of the cases whose mode begins with `mode`."""

    mode: str
    median: float


@dataclass(frozen=True, slots=True)
class Source:
    """Measurements of one origin.

    name         name of the file, without its ending
    title        what it is, with its origin and licence
    assumptions  what the source does not say, as it is asked
    goals        registered before the first run of the source, with COVERED and FACTOR
    cases        the cases of the file's rows
    """

    name: str
    title: str
    assumptions: tuple[str, ...]
    goals: tuple[Goal, ...]
    cases: Callable[[Sequence[Row]], Iterator[Case]] = field(repr=False)


# Share of measured times that 80 % intervals hold, percent; and largest median factor of a cell of LEAST_ROWS or more.
COVERED = (70.0, 90.0)
FACTOR, LEAST_ROWS = 2.0, 10
