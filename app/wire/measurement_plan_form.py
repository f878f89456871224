"""GET and POST /gpus/{name}/plan as the wire has them: milliseconds."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from app.wire.models.requests import MODEL_EXAMPLE
from app.wire.prediction_form import AnsweredBy

MOST_MEASUREMENTS = 256
_WORKLOADS = [
    {"$ref": f"#/components/schemas/{name}"} for name in ("OperatorsWorkload", "ModelWorkload", "GraphWorkload")
]
Count = Annotated[float, Meta(ge=1, le=MOST_MEASUREMENTS, multiple_of=1.0, extra_json_schema={"type": "integer"})]


class MeasurementPlanRequest(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The workload whose times are to be known better, of kind operators, model or graph, in `count` measurements."""

    workload: Annotated[dict[str, Any], Meta(extra_json_schema={"anyOf": _WORKLOADS})]
    count: Count = 32


class Gain(Struct, frozen=True):
    """The workload's expected error (mean over its time, in percent) before and after a measurement and all above."""

    error_before: float
    error_after: float


class PlannedMeasurement(Struct, frozen=True):
    """A row of POST /measurements but for its time; `estimated_ms` is how long it should take."""

    workload: dict[str, Any]
    expected_gain: Gain
    estimated_ms: float


class WorkloadInterval(Struct, frozen=True):
    """Where the workload's time lies with the probability `coverage`, its operators one after another."""

    low_ms: float
    high_ms: float
    coverage: float


class MeasurementPlan(Struct, frozen=True):
    """What to measure on a GPU, best first; `measured` is how many rows of operators are stored of it.

    `interval_after` is what is expected once all of them are measured. `notes` say what cannot be helped by this.
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
