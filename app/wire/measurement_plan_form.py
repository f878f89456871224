"""JSON structs of GET and POST /gpus/{name}/plan: milliseconds."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from app.wire.field_facts import about
from app.wire.network_form import MODEL_EXAMPLE
from app.wire.prediction_form import Answerer, Coverage, GpuId, Notes

MOST_MEASUREMENTS = 256
_WORKLOADS = [
    {"$ref": f"#/components/schemas/{name}"} for name in ("OperatorsWorkload", "ModelWorkload", "GraphWorkload")
]
Count = Annotated[float, Meta(ge=1, le=MOST_MEASUREMENTS, multiple_of=1.0, extra_json_schema={"type": "integer"})]


class MeasurementPlanRequest(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The workload to predict better, of kind operators, model or graph, and the number of measurements."""

    workload: Annotated[
        dict[str, Any],
        about("What runs: a kernel, operators, a model or a graph", extra_json_schema={"anyOf": _WORKLOADS}),
    ]
    count: Annotated[Count, about("Rows to choose")] = 32


class Gain(Struct, frozen=True):
    """The workload's expected error (mean over its time, percent) before and after this and all rows above."""

    error_before: Annotated[float, about("Expected error before, %")]
    error_after: Annotated[float, about("Expected error after, %")]


class PlannedMeasurement(Struct, frozen=True):
    """A row of POST /measurements without its time. `estimated_ms` is how long it should take."""

    workload: Annotated[dict[str, Any], about("What runs: a kernel, operators, a model or a graph")]
    expected_gain: Annotated[Gain, about("Expected error of the workload before and after this row and all above it")]
    estimated_ms: Annotated[float, about("Predicted time of this row, milliseconds")]


class WorkloadInterval(Struct, frozen=True):
    """The workload's time lies in this interval with probability `coverage`, its operators run one after another."""

    low_ms: Annotated[float, about("Lower end of the interval, milliseconds")]
    high_ms: Annotated[float, about("Upper end of the interval, milliseconds")]
    coverage: Coverage


class MeasurementPlan(Struct, frozen=True):
    """What to measure on a GPU, best first. `measured` is the number of operator rows already stored for it.

    `interval_after` is expected once all are measured. `notes` describe what measuring cannot improve.
    """

    gpu: GpuId
    measured: Annotated[int, about("Rows of operators stored of this GPU")]
    predictor: Answerer
    latency_ms: Annotated[float, about("Predicted time of the workload, milliseconds")]
    interval_now: Annotated[WorkloadInterval, about("Interval of the workload's time today")]
    interval_after: Annotated[WorkloadInterval, about("Expected interval once all rows are measured")]
    measurements: Annotated[list[PlannedMeasurement], about("Rows to measure, best first")]
    notes: Notes


PLAN_EXAMPLE: dict[str, Any] = {"workload": MODEL_EXAMPLE["workload"], "count": 32}
