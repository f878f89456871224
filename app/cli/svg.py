"""Line charts as SVG: both axes logarithmic, for scaling curves are straight there as long as they scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, floor, log10

Line = Sequence[tuple[float, float]]

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 720, 440, 80, 56, 36, 200
# Okabe and Ito's colours, which most people can tell apart.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")


def line_chart(lines: Mapping[str, Line], *, title: str, x_label: str, y_label: str) -> str:
    """Named lines of positive (x, y) points as one SVG document."""
    points = [point for line in lines.values() for point in line]
    x = _Axis([p[0] for p in points], _LEFT, _WIDTH - _RIGHT)
    y = _Axis([p[1] for p in points], _HEIGHT - _BOTTOM, _TOP)
    parts = [_text(_LEFT, 20, title, size=15), _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 12, x_label, "middle")]
    parts.append(f'<g transform="translate(18,{_HEIGHT / 2}) rotate(-90)">{_text(0, 0, y_label, "middle")}</g>')
    for value in sorted({p[0] for p in points}):
        parts += [_rule(x(value), y.start, x(value), y.end), _text(x(value), y.start + 18, f"{value:g}", "middle")]
    for value in y.decades():
        parts += [_rule(x.start, y(value), x.end, y(value)), _text(x.start - 6, y(value) + 4, f"{value:g}", "end")]
    for k, (name, line) in enumerate(lines.items()):
        colour, at = _COLOURS[k % len(_COLOURS)], _TOP + 12 + 18 * k
        path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in line)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="3" fill="{colour}"/>' for a, b in line]
        parts += [_rule(x.end + 12, at, x.end + 32, at, colour, 2), _text(x.end + 38, at + 4, name)]
    size = f'width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
    body = "\n".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">\n{body}\n</svg>\n'


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


def _rule(x1: float, y1: float, x2: float, y2: float, colour: str = "#dddddd", width: int = 1) -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width}"/>'


def _text(x: float, y: float, words: str, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(words)}</text>'
