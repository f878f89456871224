"""Line charts as geometry in shares of the plot, which a template writes as SVG: axes, bands, lines, limits, marks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, log10
from typing import Literal

from app.dashboard.format_figures import short

# Units of a plot's side in the paths, and the least gap of labels as a share of the plot's height.
_SIDE, _GAP = 1000.0, 0.06
# Values that span more than this share an axis of powers; ticks of others at most.
_SPAN, _TICKS = 12.0, 5


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis from `low` to `high`, logarithmic or not."""

    title: str
    low: float
    high: float
    log: bool

    @classmethod
    def over(cls, title: str, values: Sequence[float], compared: Sequence[float]) -> Axis:
        """Return the axis that holds positive values; logarithmic where those compared differ much."""
        if max(compared) > _SPAN * min(compared):
            return cls(f"{title} (log scale)", min(values) / 1.1, max(values) * 1.1, log=True)
        return cls(title, 0.0, max(values) * 1.04, log=False)

    def at(self, value: float) -> float:
        """Return the place of a value, 0 to 1 within the axis."""
        if self.log:
            return (log10(max(value, 1e-12)) - log10(self.low)) / (log10(self.high) - log10(self.low))
        return (value - self.low) / (self.high - self.low)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Places of round values, and the values."""
        return [(self.at(value), short(value)) for value in (self._powers() if self.log else self._steps())]

    def _powers(self) -> list[float]:
        digits = (1, 2, 5) if self.high / self.low < 200 else (1,)
        powers = range(floor(log10(self.low)), ceil(log10(self.high)) + 1)
        values = [digit * 10.0**power for power in powers for digit in digits]
        return [value for value in values if self.low <= value <= self.high]

    def _steps(self) -> list[float]:
        rough = self.high / _TICKS
        power = 10.0 ** floor(log10(rough))
        step = next(digit * power for digit in (1, 2, 2.5, 5, 10) if digit * power >= rough)
        return [step * k for k in range(int(self.high / step) + 1)]


@dataclass(frozen=True, slots=True)
class Dot:
    """A point of a line: x and y with their intervals where known, and what it says."""

    x: float
    y: float
    x_ends: tuple[float, float]
    y_ends: tuple[float, float]
    text: str


@dataclass(frozen=True, slots=True)
class Label:
    """A text at a place of the plot, shares from the left and the top."""

    x: float
    y: float
    text: str
    anchor: Literal["start", "middle", "end"]


@dataclass(frozen=True, slots=True)
class Mark(Label):
    """A ring on a line, counted from 0, with a text below it or above it."""

    line: int
    above: bool


@dataclass(frozen=True, slots=True)
class Line:
    """A line with its band as SVG paths, its points and its label."""

    path: str
    band: str
    dots: Sequence[tuple[float, float, str]]
    label: Label


@dataclass(frozen=True, slots=True)
class Rule:
    """A limit: a line across the plot at a place of an axis."""

    axis: Literal["x", "y"]
    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart; places are shares of the plot from the left and the top. `marks` are rings, some with a text.

    `frontier` is the path of the Pareto line, if there is one.
    """

    x: Axis
    y: Axis
    lines: Sequence[Line]
    rules: Sequence[Rule]
    marks: Sequence[Mark]
    frontier: str = ""


def line_of(x: Axis, y: Axis, dots: Sequence[Dot], name: str) -> Line:
    """Return a line through points in order, whose label is at its last point."""
    middle = [(dot.x, dot.y) for dot in dots]
    low = [(dot.x_ends[0], dot.y_ends[0]) for dot in dots]
    high = [(dot.x_ends[1], dot.y_ends[1]) for dot in dots]
    path = path_of(x, y, middle)
    band = f"{path_of(x, y, low)} L{path_of(x, y, high[::-1])[1:]} Z"
    places = [(x.at(dot.x), 1.0 - y.at(dot.y), dot.text) for dot in dots]
    left, top, _ = places[-1]
    return Line(path, band, places, Label(left, top - 0.03, name, "start" if left < 0.5 else "end"))


def path_of(x: Axis, y: Axis, points: Iterable[tuple[float, float]]) -> str:
    """Return the SVG path through points."""
    places = [f"{_SIDE * x.at(a):.1f} {_SIDE * (1.0 - y.at(b)):.1f}" for a, b in points]
    return "M" + " L".join(places)


def apart(lines: Sequence[Line]) -> list[Line]:
    """Return the lines with labels that do not cover one another: lower ones give way."""
    order = sorted(range(len(lines)), key=lambda k: lines[k].label.y)
    placed, last = list(lines), -1.0
    for k in order:
        label = lines[k].label
        last = max(label.y, last + _GAP)
        placed[k] = replace(lines[k], label=replace(label, y=last))
    return placed


def mark(x: Axis, y: Axis, at: tuple[float, float], text: str, line: int, *, rising: bool) -> Mark:
    """Return a ring on a rising or falling line, with a text below it, or above it at the plot's edge."""
    place = x.at(at[0])
    edge = place > 0.75 if rising else place < 0.12
    return Mark(place, 1.0 - y.at(at[1]), text, "start" if rising != edge else "end", line, above=edge)


def rule(axis: Axis, which: Literal["x", "y"], value: float, text: str) -> list[Rule]:
    """Return the line of a limit; nothing where it is off the axis."""
    place = axis.at(value)
    if not 0.0 <= place <= 1.0:
        return []
    return [Rule(which, place if which == "x" else 1.0 - place, text)]
