"""Drawings as lists of shapes, charts with logarithmic axes as drawings, and their writers of SVG and PNG."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from app.errors import BadInput

if TYPE_CHECKING:
    from PIL import ImageDraw


# PNG pixels per unit of a drawing, and the oversampling that smooths edges.
_PIXELS, _FINER = 2, 2
_DOT = 3.0


@dataclass(frozen=True, slots=True)
class Segment:
    """A straight line."""

    x1: float
    y1: float
    x2: float
    y2: float
    colour: str = "#dddddd"
    width: int = 1


@dataclass(frozen=True, slots=True)
class Polyline:
    """Straight lines from point to point."""

    points: Sequence[tuple[float, float]]
    colour: str
    width: int = 2


@dataclass(frozen=True, slots=True)
class Disc:
    """A filled circle."""

    x: float
    y: float
    colour: str


@dataclass(frozen=True, slots=True)
class Text:
    """A line of text with its baseline at y."""

    x: float
    y: float
    text: str
    anchor: Literal["start", "middle", "end"] = "start"
    size: int = 12


Shape: TypeAlias = Segment | Polyline | Disc | Text


@dataclass(frozen=True, slots=True)
class Drawing:
    """Shapes on a white background; x to the right, y down. `title` is for those who cannot see it."""

    width: int
    height: int
    shapes: Sequence[Shape]
    title: str

    def write(self, path: Path) -> None:
        """Write the drawing to a file, in the format of its suffix."""
        path.write_bytes(_WRITERS[path.suffix.lower()](self))


def refuse_other(path: Path | None) -> None:
    """Raise BadInput, before any work, for a --plot file that is neither SVG nor PNG."""
    if path is not None and path.suffix.lower() not in _WRITERS:
        raise BadInput.at(("--plot",), f"{path} must end in {' or '.join(_WRITERS)}", end=".")


def as_svg(drawing: Drawing) -> bytes:
    """Return the drawing as a file in SVG."""
    size = f'width="{drawing.width}" height="{drawing.height}" viewBox="0 0 {drawing.width} {drawing.height}"'
    body = "\n".join(_element(shape) for shape in drawing.shapes)
    name = escape(drawing.title)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{name}" font-family="sans-serif">'
    text = f'{head}\n<title>{name}</title>\n<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    return text.encode()


def _element(shape: Shape) -> str:
    if isinstance(shape, Segment):
        ends = f'x1="{shape.x1:.1f}" y1="{shape.y1:.1f}" x2="{shape.x2:.1f}" y2="{shape.y2:.1f}"'
        return f'<line {ends} stroke="{shape.colour}" stroke-width="{shape.width}"/>'
    if isinstance(shape, Polyline):
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in shape.points)
        return f'<polyline points="{points}" fill="none" stroke="{shape.colour}" stroke-width="{shape.width}"/>'
    if isinstance(shape, Disc):
        return f'<circle cx="{shape.x:.1f}" cy="{shape.y:.1f}" r="{_DOT:g}" fill="{shape.colour}"/>'
    place = f'x="{shape.x:.1f}" y="{shape.y:.1f}" text-anchor="{shape.anchor}" font-size="{shape.size}"'
    return f"<text {place}>{escape(shape.text)}</text>"


def _png(drawing: Drawing) -> bytes:
    from PIL import Image, ImageDraw  # noqa: PLC0415 - 0.1 s that only files in PNG need

    scale = _PIXELS * _FINER
    paper = Image.new("RGB", (drawing.width * scale, drawing.height * scale), "white")
    pen = ImageDraw.Draw(paper)
    for shape in drawing.shapes:
        _paint(pen, shape, scale)
    smooth = paper.resize((drawing.width * _PIXELS, drawing.height * _PIXELS), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    smooth.save(file, "PNG")
    return file.getvalue()


def _paint(pen: ImageDraw.ImageDraw, shape: Shape, scale: int) -> None:
    from PIL import ImageFont  # noqa: PLC0415

    if isinstance(shape, Segment):
        ends = [scale * end for end in (shape.x1, shape.y1, shape.x2, shape.y2)]
        pen.line(ends, fill=shape.colour, width=scale * shape.width)
    elif isinstance(shape, Polyline):
        points = [(scale * x, scale * y) for x, y in shape.points]
        pen.line(points, fill=shape.colour, width=scale * shape.width, joint="curve")
    elif isinstance(shape, Disc):
        pen.circle((scale * shape.x, scale * shape.y), scale * _DOT, fill=shape.colour)
    else:
        anchor = {"start": "ls", "middle": "ms", "end": "rs"}[shape.anchor]
        font = ImageFont.load_default(scale * shape.size)
        pen.text((scale * shape.x, scale * shape.y), shape.text, fill="black", font=font, anchor=anchor)


_WRITERS: Mapping[str, Callable[[Drawing], bytes]] = {".svg": as_svg, ".png": _png}


Line = Sequence[tuple[float, float]]

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 720, 440, 80, 56, 52, 200
# Width of the names to the left, and height of a row.
_NAMES, _ROW = 200, 20
# Okabe and Ito's palette, which colour-blind people can distinguish.
_GUIDE = "#999999"
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")


# Most values of x that are each a tick.
_MOST_TICKS = 12
# Largest ratio of a figure to its drawn low end.
_DEEPEST = 100.0


class Bar(NamedTuple):
    """A named figure and its interval, all positive; `marked` bars have another colour."""

    name: str
    middle: float
    low: float
    high: float
    marked: bool = False


def line_chart(
    lines: Mapping[str, Line], *, title: str, x_label: str, y_label: str, guides: Sequence[Line] = ()
) -> Drawing:
    """Return a chart of named lines of positive (x, y) points, before thin grey `guides`. Raises BadInput for none."""
    if not lines:
        raise BadInput("There is no figure to draw.")
    points = [point for line in (*lines.values(), *guides) for point in line]
    x = _Axis([p[0] for p in points], _LEFT, _WIDTH - _RIGHT)
    y = _Axis([p[1] for p in points], _HEIGHT - _BOTTOM, _TOP)
    shapes: list[Shape] = [
        Text(_LEFT, 20, title, size=15),
        Text(_LEFT, 40, f"{y_label} (log scale)"),
        Text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 12, f"{x_label} (log scale)", "middle"),
    ]
    values = sorted({p[0] for p in points})
    for value in values if len(values) <= _MOST_TICKS else x.decades():
        shapes += [Segment(x(value), y.start, x(value), y.end), Text(x(value), y.start + 18, f"{value:g}", "middle")]
    for value in y.decades():
        shapes += [Segment(x.start, y(value), x.end, y(value)), Text(x.start - 6, y(value) + 4, f"{value:g}", "end")]
    shapes += [Polyline([(x(a), y(b)) for a, b in guide], _GUIDE, 1) for guide in guides]
    for k, (name, line) in enumerate(lines.items()):
        colour, at = _COLOURS[k % len(_COLOURS)], _TOP + 12 + 18 * k
        shapes.append(Polyline([(x(a), y(b)) for a, b in line], colour))
        shapes += [Disc(x(a), y(b), colour) for a, b in line]
        shapes += [Segment(x.end + 12, at, x.end + 32, at, colour, 2), Text(x.end + 38, at + 4, name)]
    return Drawing(_WIDTH, _HEIGHT, shapes, title)


def interval_chart(bars: Sequence[Bar], *, title: str, note: str, x_label: str) -> Drawing:
    """Return a chart with a line per figure from the low to the high end of its interval, and a dot at the figure.

    `note` stands below the title. Raises BadInput for no figures.
    """
    if not bars:
        raise BadInput("There is no figure to draw.")
    bottom = _TOP + _ROW * len(bars)
    x = _Axis([end for bar in bars for end in (bar.middle, _low(bar), bar.high)], _NAMES, _WIDTH - 20)
    shapes: list[Shape] = [
        Text(20, 20, title, size=15),
        Text(20, 40, note),
        Text((x.start + x.end) / 2, bottom + 44, f"{x_label} (log scale)", "middle"),
    ]
    for value in x.decades():
        shapes += [Segment(x(value), _TOP, x(value), bottom), Text(x(value), bottom + 18, f"{value:g}", "middle")]
    for k, bar in enumerate(bars):
        colour, at = _COLOURS[bar.marked], _TOP + _ROW * (k + 0.5)
        shapes += [Text(_NAMES - 8, at + 4, bar.name, "end"), Segment(x(_low(bar)), at, x(bar.high), at, colour, 2)]
        shapes.append(Disc(x(bar.middle), at, colour))
    return Drawing(_WIDTH, bottom + 56, shapes, title)


def _low(bar: Bar) -> float:
    """Return the drawn low end: a logarithmic axis has no zero."""
    return max(bar.low, bar.middle / _DEEPEST)


class _Axis:
    """A logarithmic axis: maps values to positions between `start` and `end`."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self.start, self.end = start, end
        self._low, self._high = log10(min(values)), log10(max(values))

    def __call__(self, value: float) -> float:
        share = (log10(value) - self._low) / ((self._high - self._low) or 1.0)
        return self.start + (0.04 + 0.92 * share) * (self.end - self.start)

    def decades(self) -> list[float]:
        """Return 1, 2 and 5 times each power of ten within the axis."""
        powers = range(floor(self._low), ceil(self._high) + 1)
        every = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
        inside = [value for value in every if self._low - 0.05 <= log10(value) <= self._high + 0.05]
        return inside if len(inside) <= 12 else [value for value in inside if f"{value:e}".startswith("1")]
