"""The charts of the terminal's commands: scaling curves, and GPUs with their intervals. Axes are logarithmic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, floor, log10
from typing import NamedTuple

from app.cli.drawing import Curve, Dot, Drawing, Rule, Shape, Words
from app.errors import BadInput

Line = Sequence[tuple[float, float]]

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 720, 440, 80, 56, 52, 200
# Names of GPUs stand to the left, a line each.
_NAMES, _ROW = 200, 20
# Okabe and Ito's colours, which most people can tell apart.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")


# A low end farther below the middle than by this factor is drawn there.
_DEEPEST = 100.0


class Bar(NamedTuple):
    """A named figure and its interval, all positive; `marked` bars have another colour."""

    name: str
    middle: float
    low: float
    high: float
    marked: bool = False


def line_chart(lines: Mapping[str, Line], *, title: str, x_label: str, y_label: str) -> Drawing:
    """Named lines of positive (x, y) points."""
    points = [point for line in lines.values() for point in line]
    x = _Axis([p[0] for p in points], _LEFT, _WIDTH - _RIGHT)
    y = _Axis([p[1] for p in points], _HEIGHT - _BOTTOM, _TOP)
    shapes: list[Shape] = [
        Words(_LEFT, 20, title, size=15),
        Words(_LEFT, 40, y_label),
        Words((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 12, x_label, "middle"),
    ]
    for value in sorted({p[0] for p in points}):
        shapes += [Rule(x(value), y.start, x(value), y.end), Words(x(value), y.start + 18, f"{value:g}", "middle")]
    for value in y.decades():
        shapes += [Rule(x.start, y(value), x.end, y(value)), Words(x.start - 6, y(value) + 4, f"{value:g}", "end")]
    for k, (name, line) in enumerate(lines.items()):
        colour, at = _COLOURS[k % len(_COLOURS)], _TOP + 12 + 18 * k
        shapes.append(Curve([(x(a), y(b)) for a, b in line], colour))
        shapes += [Dot(x(a), y(b), colour) for a, b in line]
        shapes += [Rule(x.end + 12, at, x.end + 32, at, colour, 2), Words(x.end + 38, at + 4, name)]
    return Drawing(_WIDTH, _HEIGHT, shapes)


def interval_chart(bars: Sequence[Bar], *, title: str, x_label: str) -> Drawing:
    """A line per figure from the low to the high end of its interval, a dot in the middle."""
    if not bars:
        raise BadInput("There is no figure to draw.")
    bottom = _TOP + _ROW * len(bars)
    x = _Axis([end for bar in bars for end in (bar.middle, _low(bar), bar.high)], _NAMES, _WIDTH - 20)
    shapes: list[Shape] = [Words(20, 20, title, size=15), Words((x.start + x.end) / 2, bottom + 44, x_label, "middle")]
    for value in x.decades():
        shapes += [Rule(x(value), _TOP, x(value), bottom), Words(x(value), bottom + 18, f"{value:g}", "middle")]
    for k, bar in enumerate(bars):
        colour, at = _COLOURS[bar.marked], _TOP + _ROW * (k + 0.5)
        shapes += [Words(_NAMES - 8, at + 4, bar.name, "end"), Rule(x(_low(bar)), at, x(bar.high), at, colour, 2)]
        shapes.append(Dot(x(bar.middle), at, colour))
    return Drawing(_WIDTH, bottom + 56, shapes)


def _low(bar: Bar) -> float:
    """No logarithmic axis reaches zero."""
    return max(bar.low, bar.middle / _DEEPEST)


class _Axis:
    """Values to positions between `start` and `end`, logarithmic."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self.start, self.end = start, end
        self._low, self._high = log10(min(values)), log10(max(values))

    def __call__(self, value: float) -> float:
        share = (log10(value) - self._low) / ((self._high - self._low) or 1.0)
        return self.start + (0.04 + 0.92 * share) * (self.end - self.start)

    def decades(self) -> list[float]:
        """1, 2 and 5 of each power of ten within the axis."""
        powers = range(floor(self._low), ceil(self._high) + 1)
        every = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
        inside = [value for value in every if self._low - 0.05 <= log10(value) <= self._high + 0.05]
        return inside if len(inside) <= 12 else [value for value in inside if f"{value:e}".startswith("1")]
