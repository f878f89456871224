"""JSON structs of POST /partition: milliseconds and bytes."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from app.bands.coverage import COVERAGE
from app.wire.field_facts import about
from app.wire.kernel_workload import GpuRef
from app.wire.network_form import MODEL_EXAMPLE
from app.wire.prediction_form import (
    Answerer,
    Fits,
    GpuId,
    Interval,
    IntervalMs,
    Memory,
    RequestedCoverage,
    RequestedPredictor,
    SkippedGpus,
    WarningCodes,
    Warnings,
)

MOST_STAGES = 16


class PartitionRequest(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A network (a workload of kind `model` or `graph`) and the GPUs in pipeline order."""

    gpus: Annotated[
        list[GpuRef],
        about("Ids, aliases or specifications of GPUs, in pipeline order", min_length=2, max_length=MOST_STAGES),
    ]
    workload: Annotated[dict[str, Any], about("What runs: a model or a graph")]
    predictor: RequestedPredictor = "auto"
    coverage: RequestedCoverage = COVERAGE
    link_bandwidth_bytes_per_s: Annotated[
        Annotated[float, Meta(ge=1e3, le=1e15)] | None,
        about("Between neighbours; default: the slower link of the two GPUs"),
    ] = None
    link_latency_ms: Annotated[float, about("Fixed latency of one transfer, milliseconds", unit="ms", ge=0, le=1e6)] = (
        0.02
    )


class Stage(Struct, frozen=True):
    """What one GPU runs of the network; its time includes that of receiving the previous stage's output."""

    gpu: GpuId
    first_unit: Annotated[int, about("First unit of the stage, from 0")]
    last_unit: Annotated[int, about("Last unit of the stage")]
    first: Annotated[str, about("Name of the first unit")]
    last: Annotated[str, about("Name of the last unit")]
    latency_ms: Annotated[float, about("Time of the stage, its transfer included, milliseconds")]
    interval_ms: IntervalMs
    transfer_ms: Annotated[float, about("Transfer time of the stage's input, milliseconds")]
    sent_bytes: Annotated[float, about("Bytes sent to the next stage")]
    memory: Memory


class Cut(Struct, frozen=True):
    """One partition: consecutive requests finish every `bottleneck_ms`, a single one takes `latency_ms`."""

    stages: Annotated[list[Stage], about("What each GPU runs, in order")]
    bottleneck_ms: Annotated[
        float, about("Time of the slowest stage, the interval between consecutive requests, milliseconds")
    ]
    bottleneck_interval_ms: Annotated[Interval, about("Interval of the true time of the slowest stage, milliseconds")]
    latency_ms: Annotated[float, about("Time of a single request through all stages, milliseconds")]
    throughput_per_s: Annotated[float, about("Sequences or images per second, tokens in decode")]
    fits: Fits
    units: Annotated[int, about("Layers and operators between which the network can be partitioned")]
    predictor: Answerer
    warnings: Warnings
    warning_codes: WarningCodes


class PartitionResponse(Struct, frozen=True):
    """The partition with the fastest slowest stage, and the time on each GPU alone (null where it does not fit)."""

    partition: Annotated[Cut, about("The partition with the fastest slowest stage")]
    alone_ms: Annotated[
        list[float | None], about("Whole network on each GPU alone, milliseconds; null where it does not fit")
    ]
    skipped: SkippedGpus = []


PARTITION_EXAMPLE: dict[str, Any] = {
    "gpus": ["rtx-3060-mobile", "rtx-5070"],
    "workload": MODEL_EXAMPLE["workload"],
    "predictor": "auto",
    "coverage": 0.8,
    "link_bandwidth_bytes_per_s": 1.25e8,
    "link_latency_ms": 0.5,
}
