"""JSON structs of one measurement, in POST and GET /measurements."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from app.wire.field_facts import about
from app.wire.kernel_workload import KERNEL_EXAMPLE, GpuRef, Milliseconds, Name
from app.wire.network_form import ModelWorkload

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
    """One step of a network, as in POST /predict; a `name` may also be unknown here.

    `compiled` is whether a graph compiler ran (torch.compile), like `fused`.
    """

    compiled: Annotated[bool, about("Whether a graph compiler ran (torch.compile)")] = False


class ServedTimes(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True, omit_defaults=True):
    """Means over the requests of a load on a served model, milliseconds; `latency_ms` beside them is end to end."""

    ttft_ms: Milliseconds
    tpot_ms: Milliseconds


class MeasurementIn(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """One measured time of a kernel, an operator, a model or a load on a served model.

    `gpu` is an id, an alias or a whole specification. A load on a served model has `serving` beside `latency_ms`.
    """

    gpu: Annotated[GpuRef, about("Id of a GPU; in requests also any alias, or a whole specification")]
    software: Annotated[
        Name, about("Software stack (pytorch-2.1, vllm-0.24 ...); decides whether the host launches each operator")
    ]
    workload: Annotated[
        dict[str, Any],
        about("What runs: a kernel, operators, a model or a graph", extra_json_schema={"anyOf": WORKLOADS}),
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


MEASUREMENT_EXAMPLE: dict[str, Any] = {
    "gpu": "titan-v",
    "software": "cuda-12.4",
    "workload": {name: value for name, value in KERNEL_EXAMPLE.items() if name != "measured"},
    "latency_ms": 0.91,
    "latency_std_ms": 0.01,
    "runs": 100,
    "source": "my benchmark",
    "measured_at": "2026-03-01T12:00:00Z",
}

MODEL_EXAMPLE: dict[str, Any] = {
    "kind": "model",
    "name": "resnet50",
    "mode": "training",
    "batch": 256,
    "image_size": 224,
    "dtype": "fp16",
    "memory_format": "channels_last",
}
