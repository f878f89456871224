"""Line charts of pages as geometry that a template writes as SVG: axes, bands, lines, limits, marks.

One has throughput over batch sizes, others a served model over loads. Places are shares of the plot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, log10
from typing import Literal, NamedTuple

from msgspec import structs

from app.dashboard.choices import Controls
from app.dashboard.format_figures import short
from app.dashboard.ranking import items_of
from app.engine.snapshot import Snapshot
from app.errors import GpucastError
from app.services.compare.request import to_single_request
from app.services.compare.served_compare import Curves, LoadLimits, LoadPoint
from app.services.compare.units import duration
from app.services.models.scaling import Point, scaling_curves
from app.wire.compare_form import Compared, CompareRequest
from app.wire.network_form import ModelRequest

# Batch sizes besides the requested one, and most GPUs: for a readable chart, and an answer within a second.
_BATCHES, MOST_LINES = (1, 2, 4, 8, 16, 32, 64), 6


@dataclass(frozen=True, slots=True)
class BatchPoint:
    """A step of one batch on one GPU: milliseconds, items per second (tokens, images), and whether none is better."""

    gpu: str
    batch: int
    time: tuple[float, float, float]
    rate: tuple[float, float, float]
    pareto: bool


@dataclass(frozen=True, slots=True)
class BatchCurves:
    """The chart and its points; `unit` is what is counted per second."""

    chart: Chart
    points: Sequence[BatchPoint]
    unit: str


def batch_curves(
    snapshot: Snapshot, compared: CompareRequest, form: Controls, ranking: Sequence[Compared], *, max_rows: int
) -> BatchCurves | None:
    """Return the curves of the first GPUs on which a network fits alone; None for other workloads.

    None too where another batch cannot run, as with accumulated steps that do not divide it.
    """
    request = to_single_request(compared)
    known = [row.gpu for row in ranking if row.devices == 1 and row.memory.fits and form.catalog.find(row.gpu)]
    if not isinstance(request, ModelRequest) or not known:
        return None
    batch = int(request.workload.batch)
    request = structs.replace(request, gpus=known[:MOST_LINES])
    try:
        curves = scaling_curves(snapshot, request, devices=[1], batches=sorted({batch, *_BATCHES}), max_rows=max_rows)
    except GpucastError:
        return None
    unit, per_item = items_of(form.address)
    points = _batch_points([point for point in curves if point.fits], per_item)
    return BatchCurves(_batch_chart(points, unit, batch, form), points, unit) if points else None


def _batch_points(curves: Sequence[Point], per_item: float) -> list[BatchPoint]:
    frontier, most = set(), 0.0
    for point in sorted(curves, key=lambda point: (point.latency_ms, -point.throughput_per_s)):
        if point.throughput_per_s > most:
            most = point.throughput_per_s
            frontier.add((point.gpu, point.batch))
    return [_point(point, per_item, pareto=(point.gpu, point.batch) in frontier) for point in curves]


def _point(point: Point, per_item: float, *, pareto: bool) -> BatchPoint:
    items = point.throughput_per_s * per_item * point.latency_ms
    times = (point.latency_ms, point.low_ms, point.high_ms)
    middle, high, low = (items / max(time, 1e-12) for time in times)
    return BatchPoint(point.gpu, point.batch, times, (middle, low, high), pareto)


def _batch_chart(points: Sequence[BatchPoint], unit: str, batch: int, form: Controls) -> Chart:
    times, rates = [point.time[0] for point in points], [point.rate[0] for point in points]
    x = Axis.over("Time of a step, ms", times, times)
    y = Axis.over(f"{unit}/s", [rate for point in points for rate in point.rate], rates)
    lines, marks = [], []
    for k, gpu in enumerate(dict.fromkeys(point.gpu for point in points)):
        own = [point for point in points if point.gpu == gpu]
        lines.append(line_of(x, y, [_dot(point, unit, form) for point in own], form.name_of(gpu)))
        rings = [point for point in own if point.batch == batch]
        marks += [mark(x, y, (point.time[0], point.rate[0]), "", k, rising=True) for point in rings]
    best = sorted((point.time[0], point.rate[0]) for point in points if point.pareto)
    return Chart(x, y, apart(lines), [], marks, path_of(x, y, best))


def _dot(point: BatchPoint, unit: str, form: Controls) -> Dot:
    text = (
        f"{form.name_of(point.gpu)}, batch {point.batch}: {point.time[0]:.3g} ms, {point.rate[0]:,.0f} {unit.lower()}/s"
    )
    return Dot(point.time[0], point.rate[0], (point.time[0], point.time[0]), point.rate[1:], text)


# A limit widens its axis if it is within this many times of what is drawn; an interval's end does up to so many times.
_NEAR, _BEYOND = 3.0, 1.3


class _Drawn(NamedTuple):
    """The line of a GPU type: its points, and where its ring is."""

    curves: Curves
    dots: list[Dot]
    ring: tuple[float, float] | None


def speed_chart(
    curves: Sequence[Curves], limits: LoadLimits, names: Callable[[Curves], str], best: str
) -> Chart | None:
    """Return tokens a second per GPU against those per user, over requests in flight; None without points.

    `best` is the GPU type whose ring says its cost.
    """
    drawn = []
    for one in curves:
        dots = [_speed_dot(point) for point in one.by_concurrency if point.tokens_per_s_per_user is not None]
        speed = None if one.best is None else one.best.tokens_per_s_per_user
        ring = None if one.best is None or speed is None else (speed, one.best.tokens_per_s_per_gpu)
        drawn += [_Drawn(one, dots, ring)] if dots else []
    if not drawn:
        return None
    rings = [one.ring for one in drawn if one.ring is not None]
    limit = [] if limits.tpot_ms is None else [1e3 / limits.tpot_ms]
    x = _axis(
        "tokens/s per user",
        [[(dot.x, dot.x_ends) for dot in one.dots] for one in drawn],
        [*limit, *(at for at, _ in rings)],
    )
    y = _axis("tokens/s per GPU", [[(dot.y, dot.y_ends) for dot in one.dots] for one in drawn], [at for _, at in rings])
    rules = [one for value in limit for one in rule(x, "x", value, f"TPOT {duration(limits.tpot_ms)}")]
    return _chart(x, y, drawn, rules, names, best, rising=False)


def first_token_chart(
    curves: Sequence[Curves], limits: LoadLimits, names: Callable[[Curves], str], best: str
) -> Chart | None:
    """Return the time to first token at the limits' percentile against the rate; None without points."""
    drawn = [
        _Drawn(
            one,
            [_rate_dot(point, limits) for point in one.by_rate],
            None if one.best is None else (one.best.load, one.best.ttft_at_ms),
        )
        for one in curves
        if one.by_rate
    ]
    if not drawn:
        return None
    limit = [] if limits.ttft_ms is None else [limits.ttft_ms]
    title = f"TTFT p{limits.percentile}, ms"
    x = _axis("requests per second", [[(dot.x, dot.x_ends) for dot in one.dots] for one in drawn], [])
    y = _axis(title, [[(dot.y, dot.y_ends) for dot in one.dots] for one in drawn], limit, whole=True)
    rules = [one for value in limit for one in rule(y, "y", value, f"TTFT {duration(value)}")]
    return _chart(x, y, drawn, rules, names, best, rising=True)


def _chart(
    x: Axis,
    y: Axis,
    drawn: Sequence[_Drawn],
    rules: Sequence[Rule],
    names: Callable[[Curves], str],
    best: str,
    *,
    rising: bool,
) -> Chart:
    lines = [line_of(x, y, one.dots, names(one.curves)) for one in drawn]
    marks = [
        mark(x, y, one.ring, _worth(one.curves.best) if one.curves.gpu == best else "", line, rising=rising)
        for line, one in enumerate(drawn)
        if one.ring is not None and one.curves.best is not None
    ]
    return Chart(x, y, apart(lines), rules, marks)


def _axis(
    title: str,
    lines: Sequence[Sequence[tuple[float, tuple[float, float]]]],
    besides: Sequence[float],
    *,
    whole: bool = False,
) -> Axis:
    """Return the axis of lines, values with their intervals, and of values `besides`, unless these are far off.

    It is of powers where lines end far apart; `whole`: or where one is long.
    """
    values = [value for line in lines for value, _ in line]
    least, most = min(values) / _BEYOND, _BEYOND * max(values)
    ends = [max(end, least) for line in lines for _, (end, _) in line]
    ends += [min(end, most) for line in lines for _, (_, end) in line]
    near = [value for value in besides if value <= _NEAR * most]
    compared = values + near if whole else [max(value for value, _ in line) for line in lines]
    return Axis.over(title, values + ends + near, compared)


def _speed_dot(point: LoadPoint) -> Dot:
    speed, each = point.tokens_per_s_per_user or 0.0, point.tokens_per_s_per_gpu
    ends, around = point.tokens_per_s_per_user_interval, point.tokens_per_s_per_gpu_interval
    text = f"{point.load:g} in flight: {short(each)} tokens/s per GPU, {short(speed)} tokens/s per user"
    return Dot(
        speed,
        each,
        (speed, speed) if ends is None else (ends.low, ends.high),
        (each, each) if around is None else (around.low, around.high),
        text,
    )


def _rate_dot(point: LoadPoint, limits: LoadLimits) -> Dot:
    ends, at = point.ttft_at_interval_ms, point.ttft_at_ms
    text = f"{short(point.load)} requests/s: TTFT p{limits.percentile} {duration(at)}"
    return Dot(point.load, at, (point.load, point.load), (ends.low, ends.high), text)


def _worth(point: LoadPoint) -> str:
    """Return what a million tokens cost at a point, or the tokens of a GPU where no price is known."""
    if point.cost_per_million_tokens is None:
        return f"{short(point.tokens_per_s_per_gpu)} tokens/s"
    return f"{point.cost_per_million_tokens:.2f} USD"


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
