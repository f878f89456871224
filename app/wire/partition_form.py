"""JSON structs of POST /partition: milliseconds and bytes."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from app.wire.kernel_workload import GpuRef
from app.wire.network_form import MODEL_EXAMPLE
from app.wire.prediction_form import AnsweredBy, Interval, MemoryUse, Skipped

MOST_STAGES = 16


class PartitionRequest(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A network (a workload of kind `model` or `graph`) and the GPUs in pipeline order."""

    gpus: Annotated[list[GpuRef], Meta(min_length=2, max_length=MOST_STAGES)]
    workload: dict[str, Any]
    predictor: Annotated[str, Meta(min_length=1, max_length=100)] = "auto"
    coverage: Annotated[float, Meta(gt=0, lt=1, description="Share of true times the interval should hold")] = 0.8
    link_bandwidth_bytes_per_s: Annotated[
        Annotated[float, Meta(ge=1e3, le=1e15)] | None,
        Meta(description="Between neighbours; default: the slower link of the two GPUs"),
    ] = None
    link_latency_ms: Annotated[float, Meta(ge=0, le=1e6, description="Fixed latency of one transfer")] = 0.02


class Stage(Struct, frozen=True):
    """What one GPU runs: units `first_unit` to `last_unit`, counted from 0, with the names `first` and `last`.

    `latency_ms` includes `transfer_ms`, the time to receive the previous stage's output. `sent_bytes` is its own
    output.
    """

    gpu: str
    first_unit: int
    last_unit: int
    first: str
    last: str
    latency_ms: float
    interval_ms: Interval
    transfer_ms: float
    sent_bytes: float
    memory: MemoryUse


class Cut(Struct, frozen=True):
    """One partition: consecutive requests finish every `bottleneck_ms`, a single one takes `latency_ms`."""

    stages: list[Stage]
    bottleneck_ms: float
    bottleneck_interval_ms: Interval
    latency_ms: float
    throughput_per_s: float
    fits: bool
    units: int
    predictor: AnsweredBy
    warnings: list[str]


class PartitionResponse(Struct, frozen=True):
    """The partition with the fastest slowest stage, and the time on each GPU alone (null where it does not fit)."""

    partition: Cut
    alone_ms: list[float | None]
    skipped: list[Skipped] = []


PARTITION_EXAMPLE: dict[str, Any] = {
    "gpus": ["rtx-3060-mobile", "rtx-5070"],
    "workload": MODEL_EXAMPLE["workload"],
    "predictor": "auto",
    "coverage": 0.8,
    "link_bandwidth_bytes_per_s": 1.25e8,
    "link_latency_ms": 0.5,
}
