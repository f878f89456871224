"""JSON structs of POST /compare: milliseconds, bytes, US dollars, joules."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from app.wire.kernel_workload import GpuRef
from app.wire.network_form import MODEL_EXAMPLE
from app.wire.prediction_form import MAX_GPUS, AnsweredBy, Interval, MemoryUse, Skipped
from app.wire.rankings import RankBy

# With more devices the search over parallel sizes takes seconds, and links between racks are not modelled.
MOST_DEVICES = 64
_REF = "#/components/schemas/{name}"
_KINDS = ("KernelWorkload", "OperatorsWorkload", "ModelWorkload", "GraphWorkload", "ServingWorkload")
WORKLOADS = [{"$ref": _REF.format(name=name)} for name in _KINDS]


class CompareRequest(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """One workload of any kind except columns, on many GPUs: a list of names and specifications, or "all".

    `prices` (US dollars per hour of one device) and `powers_w` (watts of one device) are keyed by any name of a GPU,
    and override stored prices and measured power. Networks that do not fit one device are tried on up to `max_devices`;
    with `search_parallelism` all networks are.
    """

    workload: Annotated[dict[str, Any], Meta(extra_json_schema={"anyOf": WORKLOADS})]
    gpus: Annotated[list[GpuRef], Meta(min_length=1, max_length=MAX_GPUS)] | Literal["all"] = "all"
    rank_by: RankBy = "latency"
    prices: dict[str, float] = {}
    currency: Annotated[str, Meta(description="only USD: no exchange rate is known here")] = "USD"
    powers_w: dict[str, float] = {}
    search_parallelism: bool = False
    max_devices: Annotated[float, Meta(ge=1, le=MOST_DEVICES, multiple_of=1, extra_json_schema={"type": "integer"})] = 8
    predictor: Annotated[str, Meta(min_length=1, max_length=100)] = "auto"
    coverage: Annotated[float, Meta(gt=0, lt=1, description="Share of true times the interval should hold")] = 0.8
    save: Annotated[bool, Meta(description="Keep the answer: it gets an `id`, for GET /predictions/{id}")] = False


class Split(Struct, frozen=True):
    """How a network is split over devices, with the fields of a workload's `parallelism`."""

    data: int
    tensor: int
    pipeline: int
    microbatches: int
    nodes: int
    zero: int


class Compared(Struct, frozen=True):
    """One GPU's figures for one step of a network, one launch of a kernel, or one run of a list of operators.

    Null means unknown: no price, no power, or a workload that takes no time. `cost_usd` is time x devices x price,
    `energy_j` is time x devices x power per device; throughput per dollar and per joule come from the central
    estimates. `memory` is per device. `pareto` is true if no other GPU is at least as fast, cheap and frugal and better
    in one of these. `indistinguishable_from` lists GPUs whose order relative to this one, by the ranked figure, is not
    statistically certain.
    """

    rank: int
    gpu: str
    devices: int
    parallelism: Split | None
    latency_ms: float
    interval_ms: Interval
    throughput_per_s: float | None
    throughput_interval_per_s: Interval | None
    cost_usd: float | None
    cost_interval_usd: Interval | None
    energy_j: float | None
    energy_interval_j: Interval | None
    power_w: float | None
    power_source: str | None
    price_usd_per_hour: float | None
    price_source: str | None
    throughput_per_usd: float | None
    throughput_per_joule: float | None
    memory: MemoryUse
    bound: Literal["compute", "memory", "launch", "communication"]
    support: Literal["measured", "interpolated", "extrapolated"]
    predictor: AnsweredBy
    pareto: bool
    indistinguishable_from: list[str]
    warnings: list[str]


class CompareResponse(Struct, frozen=True):
    """The GPUs in ranked order. `skipped` are those of "all" that cannot run the workload; `notes` apply to all rows.

    GPUs without the ranked figure, and after them those with too little memory, come last.
    """

    rank_by: RankBy
    ranking: list[Compared]
    skipped: list[Skipped]
    notes: list[str]
    id: int | UnsetType = UNSET


COMPARE_EXAMPLE: dict[str, Any] = {
    "workload": MODEL_EXAMPLE["workload"],
    "gpus": ["nvidia-l4", "a100-sxm4-80gb", "h100-sxm5-80gb"],
    "rank_by": "cost",
    "prices": {"nvidia-l4": 0.8, "h100-sxm5-80gb": 3.0},
    "currency": "USD",
    "powers_w": {"nvidia-l4": 70.0},
    "search_parallelism": False,
    "max_devices": 8,
    "predictor": "auto",
    "coverage": 0.8,
}
