"""Scaling curves: throughput over data-parallel devices and over batch sizes (ConvMeter, figures 8 and 9)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil

from msgspec import Struct, structs

from app.engine.snapshot import Snapshot
from app.services.models.predict_networks import predict_network
from app.tables.gpus import DEVICES_PER_NODE
from app.wire.network_form import ModelRequest


class Point(Struct, frozen=True):
    """A step on some devices: `batch` is global, `efficiency` throughput per device relative to the fewest."""

    gpu: str
    devices: int
    nodes: int
    batch: int
    latency_ms: float
    low_ms: float
    high_ms: float
    throughput_per_s: float
    efficiency: float
    communication_ms: float
    fits: bool


def scaling_curves(
    snapshot: Snapshot,
    request: ModelRequest,
    *,
    devices: Sequence[int],
    batches: Sequence[int],
    strong: bool = False,
    max_rows: int,
) -> list[Point]:
    """Return a point for every GPU, batch and number of devices, grouped by GPU.

    `batches` are per device (weak scaling), or with `strong` per step, split over the devices.
    """
    points: list[Point] = []
    for batch in batches:
        steps = list(_steps(snapshot, request, devices, 0 if strong else batch, batch, max_rows))
        fewest = {point.gpu: point for point in reversed(steps)}
        for point in steps:
            base = fewest[point.gpu]
            each = point.throughput_per_s / point.devices / (base.throughput_per_s / base.devices)
            points.append(structs.replace(point, efficiency=each))
    order = {gpu: k for k, gpu in enumerate(dict.fromkeys(point.gpu for point in points))}
    return sorted(points, key=lambda point: order[point.gpu])


def _steps(
    snapshot: Snapshot, request: ModelRequest, devices: Sequence[int], each: int, batch: int, max_rows: int
) -> Iterator[Point]:
    for count in devices:
        base = request.workload
        split = structs.replace(base.parallelism, data=count)
        total = int(count * split.tensor * split.pipeline)
        nodes = next(n for n in range(ceil(total / DEVICES_PER_NODE), total + 1) if total % n == 0)
        split = structs.replace(split, nodes=nodes)
        workload = structs.replace(base, batch=each * count or batch, parallelism=split)
        for prediction in predict_network(
            snapshot, structs.replace(request, workload=workload), max_rows=max_rows
        ).predictions:
            yield Point(
                prediction.gpu,
                total,
                nodes,
                int(workload.batch),
                prediction.latency_ms,
                prediction.interval_ms.low,
                prediction.interval_ms.high,
                float(prediction.throughput_per_s),  # type: ignore[arg-type]
                1.0,
                prediction.phases_ms.communication,  # type: ignore[union-attr]
                prediction.memory.fits,
            )
