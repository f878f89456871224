"""Throughput of a network against the time of its step, over batch sizes, on the first GPUs of a ranking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import structs

from app.dashboard.charts.measured import MeasuredPoint, measured_steps
from app.dashboard.choices import Controls
from app.dashboard.ranking import items_of
from app.engine.snapshot import Snapshot
from app.errors import GpucastError
from app.services.compare.request import to_single_request
from app.services.models.scaling import Point, scaling_curves
from app.store.session import Database
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
    """Predicted and measured points, and those of the requested batch; `unit` is what is counted per second."""

    points: Sequence[BatchPoint]
    measured: Sequence[MeasuredPoint]
    marks: Sequence[dict[str, object]]
    unit: str


def batch_curves(
    snapshot: Snapshot,
    database: Database,
    compared: CompareRequest,
    form: Controls,
    ranking: Sequence[Compared],
    *,
    max_rows: int,
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
    if not points:
        return None
    marks = [
        {"group": form.name_of(one.gpu), "x": one.time[0], "y": one.rate[0], "text": f"{form.name_of(one.gpu)}, asked"}
        for one in points
        if one.batch == batch
    ]
    names = {gpu: form.name_of(gpu) for gpu in known[:MOST_LINES]}
    return BatchCurves(points, measured_steps(database, request.workload, names, per_item), marks, unit)


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
