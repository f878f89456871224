"""JSON structs of GET and POST /gpus/{name}/plan: milliseconds."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from app.wire.network_form import MODEL_EXAMPLE
from app.wire.prediction_form import AnsweredBy

MOST_MEASUREMENTS = 256
_WORKLOADS = [
    {"$ref": f"#/components/schemas/{name}"} for name in ("OperatorsWorkload", "ModelWorkload", "GraphWorkload")
]
Count = Annotated[float, Meta(ge=1, le=MOST_MEASUREMENTS, multiple_of=1.0, extra_json_schema={"type": "integer"})]


class MeasurementPlanRequest(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The workload to predict better, of kind operators, model or graph, and the number of measurements."""

    workload: Annotated[dict[str, Any], Meta(extra_json_schema={"anyOf": _WORKLOADS})]
    count: Count = 32


class Gain(Struct, frozen=True):
    """The workload's expected error (mean over its time, percent) before and after this and all rows above."""

    error_before: float
    error_after: float


class PlannedMeasurement(Struct, frozen=True):
    """A row of POST /measurements without its time. `estimated_ms` is how long it should take."""

    workload: dict[str, Any]
    expected_gain: Gain
    estimated_ms: float


class WorkloadInterval(Struct, frozen=True):
    """The workload's time lies in this interval with probability `coverage`, its operators run one after another."""

    low_ms: float
    high_ms: float
    coverage: float


class MeasurementPlan(Struct, frozen=True):
    """What to measure on a GPU, best first. `measured` is the number of operator rows already stored for it.

    `interval_after` is expected once all are measured. `notes` describe what measuring cannot improve.
    """

    gpu: str
    measured: int
    predictor: AnsweredBy
    latency_ms: float
    interval_now: WorkloadInterval
    interval_after: WorkloadInterval
    measurements: list[PlannedMeasurement]
    notes: list[str]


PLAN_EXAMPLE: dict[str, Any] = {"workload": MODEL_EXAMPLE["workload"], "count": 32}
