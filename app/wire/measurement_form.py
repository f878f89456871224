"""JSON structs of one measurement, and of plans of what to measure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Literal, Self, TypeAlias

import numpy as np
from msgspec import UNSET, Meta, Struct
from numpy.typing import NDArray

from app.runtime.release import release
from app.wire.examples import EXAMPLES
from app.wire.field_facts import WHOLE, about
from app.wire.kernel_workload import GpuRef, Milliseconds, Name
from app.wire.network_form import MODEL_EXAMPLE, ModelWorkload
from app.wire.operator_columns import Column, slice_cells
from app.wire.prediction_form import Answerer, Coverage, GpuId, Narrowing, Notes

Spread: TypeAlias = Annotated[float, Meta(ge=0, le=1e9)]
Runs: TypeAlias = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Phase: TypeAlias = Literal["forward", "backward", "update", "communication"]
_Extent: TypeAlias = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Dims: TypeAlias = _Extent | Annotated[list[_Extent], Meta(min_length=1, max_length=3)]
_REF = "#/components/schemas/{name}"
_ONE_OPERATOR = {
    "type": "object",
    "description": "one operator: `kind` operator, `op` and its own fields, as in a list of operators",
    "properties": {"kind": {"const": "operator"}, "op": {"type": "string"}},
    "required": ["kind", "op"],
}
WORKLOADS = [
    {"$ref": _REF.format(name="KernelWorkload")},
    _ONE_OPERATOR,
    {"$ref": _REF.format(name="OperatorsWorkload")},
    {"$ref": _REF.format(name="MeasuredModel")},
    {"$ref": _REF.format(name="ServingWorkload")},
]

# C++ template symbols are long.
Symbol: TypeAlias = Annotated[str, Meta(min_length=1, max_length=2000, pattern="^[^\\x00-\\x1f\\x7f]+$")]


class LaunchedKernel(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True, omit_defaults=True):
    """The device function that ran: its symbol, and its grid and block with one to three sizes."""

    name: Annotated[Symbol | None, about("Symbol of the device function")] = None
    grid: Annotated[Dims | None, about("Blocks of the launch, in up to three dimensions")] = None
    block: Annotated[Dims | None, about("Threads of a block, in up to three dimensions")] = None


class MeasuredModel(ModelWorkload, forbid_unknown_fields=True, kw_only=True, frozen=True, omit_defaults=True):
    """One step of a network, as in POST /predict; a `name` may also be unknown here."""


class ServedTimes(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True, omit_defaults=True):
    """Means over the requests of a load on a served model, milliseconds; `latency_ms` beside them is end to end."""

    ttft_ms: Milliseconds
    tpot_ms: Milliseconds


class MeasurementIn(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """One measured time of a kernel, an operator, a model or a load on a served model.

    `gpu` is an id, an alias or a whole specification. A load on a served model has `serving` beside `latency_ms`.
    """

    gpu: Annotated[GpuRef, about("Id, alias or whole specification of a GPU")]
    software: Annotated[
        Name, about("Software stack (pytorch-2.1, vllm-0.24 ...); decides whether the host launches each operator")
    ]
    workload: Annotated[
        dict[str, Any],
        about("What ran: a kernel, operators, a model or a served model", extra_json_schema={"anyOf": WORKLOADS}),
    ]
    latency_ms: Milliseconds
    source: Annotated[Name, about("Who measured or published it")]
    latency_std_ms: Annotated[Spread | None, about("Standard deviation of the measured time, milliseconds")] = None
    runs: Annotated[Runs | None, about("Repetitions measured")] = None
    phases_ms: Annotated[dict[Phase, Spread] | None, about("The step by its phases, milliseconds")] = None
    serving: Annotated[ServedTimes | None, about("Mean times of a load on a served model")] = None
    kernel: Annotated[LaunchedKernel | None, about("Device function that ran")] = None
    clock_hz: Annotated[Annotated[float, Meta(gt=0, le=1e12)] | None, about("Clock of the SMs while measuring, Hz")] = (
        None
    )
    power_w: Annotated[Annotated[float, Meta(ge=0, le=1e6)] | None, about("Power of one device, watts")] = None
    measured_at: Annotated[Annotated[datetime, Meta(tz=True)] | None, about("When it was measured")] = None


MEASUREMENT_EXAMPLE: dict[str, Any] = EXAMPLES["measurement"]

MEASURED_MODEL_EXAMPLE: dict[str, Any] = EXAMPLES["measured_model"]


MOST_MEASUREMENTS = 256
_WORKLOADS = [
    {"$ref": f"#/components/schemas/{name}"} for name in ("OperatorsWorkload", "ModelWorkload", "GraphWorkload")
]
Count = Annotated[float, Meta(ge=1, le=MOST_MEASUREMENTS, **WHOLE)]


class MeasurementPlanRequest(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The workload to predict better, of kind operators, model or graph, and the number of measurements."""

    workload: Annotated[
        dict[str, Any],
        about("What runs: operators, a model or a graph", extra_json_schema={"anyOf": _WORKLOADS}),
    ]
    count: Annotated[Count, about("Rows to choose")] = 32


class Gain(Struct, frozen=True):
    """The workload's expected error (mean over its time, percent) before and after this and all rows above."""

    error_before: Annotated[float, about("Expected error before, %")]
    error_after: Annotated[float, about("Expected error after, %")]


class PlannedMeasurement(Struct, frozen=True):
    """A row of POST /measurements without its time. `estimated_ms` is how long it should take."""

    workload: Annotated[dict[str, Any], about("The operator to measure, as POST /measurements takes it")]
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
    narrowed_by: Narrowing = UNSET


MEASUREMENT_PLAN_EXAMPLE: dict[str, Any] = {"workload": MODEL_EXAMPLE["workload"], "count": 32}


@dataclass(frozen=True, slots=True)
class Objects:
    """Measurements as objects in the API's form; `position` is each row's place in the upload, int [n]."""

    rows: Sequence[Mapping[str, Any]]
    position: NDArray[np.intp]

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]]) -> Self:
        """Return all rows, in order."""
        return cls(rows, np.arange(len(rows)))

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, rows: slice) -> Objects:
        """Return consecutive rows."""
        return Objects(self.rows[rows], self.position[rows])


@dataclass(frozen=True, slots=True)
class OperatorColumns:
    """Measurements of operators in columns: n rows, with the fields of the measurement and of its operator.

    `position` is each row's place in the upload, int [n].
    """

    columns: Mapping[str, Column]
    position: NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.position)

    def part(self, rows: slice) -> OperatorColumns:
        """Return consecutive rows."""
        return OperatorColumns(
            {name: slice_cells(column, rows) for name, column in self.columns.items()}, self.position[rows]
        )


@dataclass(frozen=True, slots=True)
class OperatorCells:
    """Measurements of operators in an Arrow table, of which `read` makes columns, some rows at a time.

    `position` is each row's place in the upload, int [n].
    """

    table: Any
    position: NDArray[np.intp]
    read: Callable[[Any, NDArray[np.intp]], OperatorColumns]

    def __len__(self) -> int:
        return len(self.position)

    def part(self, rows: slice) -> OperatorCells:
        """Return consecutive rows."""
        first, stop, _ = rows.indices(len(self))
        return OperatorCells(self.table.slice(first, stop - first), self.position[rows], self.read)


def columns_of(rows: OperatorColumns | OperatorCells, step: int) -> Iterator[OperatorColumns]:
    """Yield the rows in columns, at most `step` at a time. Raises BadInput for cells that cannot be read."""
    for first in range(0, len(rows), step):
        part = rows.part(slice(first, first + step))
        yield part.read(part.table, part.position) if isinstance(part, OperatorCells) else part


UploadPart: TypeAlias = Objects | OperatorColumns | OperatorCells


@dataclass(frozen=True, slots=True)
class Upload:
    """One request body or file.

    parts    measured rows: operators in columns, others as objects
    skipped  reason -> number of rows that hold no measurement
    ignored  column -> number of rows, for columns that are only for human readers
    device   the specification of the measured GPU, as POST /gpus takes it, if the file has one
    """

    parts: tuple[UploadPart, ...]
    skipped: Counter[str] = field(default_factory=Counter)
    ignored: Counter[str] = field(default_factory=Counter)
    device: Mapping[str, Any] | None = None

    def __len__(self) -> int:
        return sum(map(len, self.parts)) + self.skipped.total()

    def release(self) -> None:
        """Free the rows that are objects; the upload has them no more."""
        for part in self.parts:
            if isinstance(part, Objects) and isinstance(part.rows, list):
                release(part.rows)


class Drift(Struct, frozen=True):
    """New measurements compared with what `auto` would have predicted for them."""

    rows: Annotated[int, about("Rows compared, a sample of large uploads")]
    median_ape: Annotated[float, about("median absolute error of the prediction, % of the measured time")]
    inside_interval: Annotated[float, about("share of measured times within the 80 % interval, %")]


class Doubt(Struct, frozen=True):
    """Why a row is doubtful; `loc` is its position and field."""

    loc: Annotated[list[int | str], about("the row's position, and the field")]
    msg: Annotated[str, about("the time, and the one that was expected")]


class UploadReport(Struct, frozen=True, kw_only=True):
    """Result of an upload: `unchanged` rows were stored before."""

    received: Annotated[int, about("Rows in the body")]
    inserted: Annotated[int, about("Rows stored now")]
    unchanged: Annotated[int, about("Rows that were stored before")]
    doubtful: Annotated[int, about("new rows that are far from what was expected: stored, but not used")]
    doubts: Annotated[list[Doubt], about("why rows are doubtful, row by row")]
    upload_id: Annotated[int | None, about("by which the new rows can be listed and deleted; null without any")]
    skipped: Annotated[dict[str, int], about("reason -> number of rows without a measurement")]
    ignored: Annotated[dict[str, int], about("column -> number of rows, for columns that are not stored")]
    added_gpus: Annotated[list[str], about("GPUs that the upload defined")]
    drift: Annotated[Drift | None, about("Error of predictions on the new rows; null: not predictable")]
    dry_run: Annotated[bool, about("Whether this was a dry run")]
