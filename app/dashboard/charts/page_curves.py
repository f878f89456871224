"""Line charts of pages: throughput over batch sizes, and a served model over loads, with intervals and limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from msgspec import structs

from app.dashboard.charts.curves import Axis, Chart, Dot, Rule, apart, line_of, mark, path_of, rule
from app.dashboard.choices import Controls
from app.dashboard.format_figures import short, time
from app.dashboard.ranking import items_of
from app.engine.snapshot import Snapshot
from app.errors import GpucastError
from app.services.compare.request import to_single_request
from app.services.compare.served_compare import Curves, LoadLimits, LoadPoint
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
    rules = [one for value in limit for one in rule(x, "x", value, f"TPOT {time(limits.tpot_ms)}")]
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
    rules = [one for value in limit for one in rule(y, "y", value, f"TTFT {time(value)}")]
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
    text = f"{short(point.load)} requests/s: TTFT p{limits.percentile} {time(at)}"
    return Dot(point.load, at, (point.load, point.load), (ends.low, ends.high), text)


def _worth(point: LoadPoint) -> str:
    """Return what a million tokens cost at a point, or the tokens of a GPU where no price is known."""
    if point.cost_per_million_tokens is None:
        return f"{short(point.tokens_per_s_per_gpu)} tokens/s"
    return f"{point.cost_per_million_tokens:.2f} USD"
