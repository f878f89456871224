"""Drawings as lists of shapes, and their writers of SVG and PNG."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from PIL import ImageDraw

from app.errors import BadInput, FieldError

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
        message = f"{path} must end in {' or '.join(_WRITERS)}"
        raise BadInput(f"--plot: {message}.", errors=[FieldError(("--plot",), message)])


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
