"""Throughput against time over batch sizes: a line per GPU, and the Pareto line of them all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import structs

from app.dashboard.curve_chart import Axis, Chart, Dot, apart, line_of, mark, path_of
from app.dashboard.form_controls import Controls
from app.dashboard.ranked_figures import items_of
from app.engine.gpu_rows import Snapshot
from app.errors import GpucastError
from app.services.compare.request import to_single_request
from app.services.models.scaling import Point, scaling_curves
from app.wire.compare_form import Compared, CompareRequest
from app.wire.network_form import ModelRequest

# Batch sizes besides the one asked for, and most GPUs: for a readable chart, and an answer within a second.
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
    asked = int(request.workload.batch)
    request = structs.replace(request, gpus=known[:MOST_LINES])
    try:
        found = scaling_curves(snapshot, request, devices=[1], batches=sorted({asked, *_BATCHES}), max_rows=max_rows)
    except GpucastError:
        return None
    unit, per_item = items_of(form.address)
    points = _points([point for point in found if point.fits], per_item)
    return BatchCurves(_chart(points, unit, asked, form), points, unit) if points else None


def _points(found: Sequence[Point], per_item: float) -> list[BatchPoint]:
    frontier, most = set(), 0.0
    for point in sorted(found, key=lambda point: (point.latency_ms, -point.throughput_per_s)):
        if point.throughput_per_s > most:
            most = point.throughput_per_s
            frontier.add((point.gpu, point.batch))
    return [_point(point, per_item, pareto=(point.gpu, point.batch) in frontier) for point in found]


def _point(point: Point, per_item: float, *, pareto: bool) -> BatchPoint:
    items = point.throughput_per_s * per_item * point.latency_ms
    times = (point.latency_ms, point.low_ms, point.high_ms)
    middle, high, low = (items / max(time, 1e-12) for time in times)
    return BatchPoint(point.gpu, point.batch, times, (middle, low, high), pareto)


def _chart(points: Sequence[BatchPoint], unit: str, asked: int, form: Controls) -> Chart:
    times, rates = [point.time[0] for point in points], [point.rate[0] for point in points]
    x = Axis.over("Time of a step, ms", times, times)
    y = Axis.over(f"{unit}/s", [rate for point in points for rate in point.rate], rates)
    lines, marks = [], []
    for k, gpu in enumerate(dict.fromkeys(point.gpu for point in points)):
        own = [point for point in points if point.gpu == gpu]
        lines.append(line_of(x, y, [_dot(point, unit, form) for point in own], form.name_of(gpu)))
        rings = [point for point in own if point.batch == asked]
        marks += [mark(x, y, (point.time[0], point.rate[0]), "", k, rising=True) for point in rings]
    best = sorted((point.time[0], point.rate[0]) for point in points if point.pareto)
    return Chart(x, y, apart(lines), [], marks, path_of(x, y, best))


def _dot(point: BatchPoint, unit: str, form: Controls) -> Dot:
    text = (
        f"{form.name_of(point.gpu)}, batch {point.batch}: {point.time[0]:.3g} ms, {point.rate[0]:,.0f} {unit.lower()}/s"
    )
    return Dot(point.time[0], point.rate[0], (point.time[0], point.time[0]), point.rate[1:], text)
