"""JSON structs of POST /compare: milliseconds, bytes, US dollars, joules."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct

from app.wire.field_facts import about
from app.wire.kernel_workload import GpuRef
from app.wire.network_form import MODEL_EXAMPLE
from app.wire.prediction_form import (
    MAX_GPUS,
    Answerer,
    Bound,
    DeviceCount,
    GpuId,
    Interval,
    IntervalMs,
    LatencyMs,
    Memory,
    Notes,
    PredictorName,
    SavedId,
    SkippedGpus,
    Support,
    WarningCodes,
    Warnings,
)
from app.wire.rankings import RankBy

# With more devices the search over parallel sizes takes seconds, and links between racks are not modelled.
MOST_DEVICES = 64
_REF = "#/components/schemas/{name}"
_KINDS = ("KernelWorkload", "OperatorsWorkload", "ModelWorkload", "GraphWorkload", "ServingWorkload")
WORKLOADS = [{"$ref": _REF.format(name=name)} for name in _KINDS]

RankedGpus: TypeAlias = Annotated[
    Annotated[list[GpuRef], Meta(min_length=1, max_length=MAX_GPUS)] | Literal["all"],
    about('Ids, aliases or specifications of GPUs; "all": the whole catalogue'),
]
Prices: TypeAlias = Annotated[
    dict[str, float], about("US dollars per hour of one device, by any name of the GPU; override stored prices")
]
Powers: TypeAlias = Annotated[
    dict[str, float], about("Watts of one device, by any name of the GPU; override the power model")
]
MostDevices: TypeAlias = Annotated[
    float,
    about(
        "Most devices that a split or plan may take",
        ge=1,
        le=MOST_DEVICES,
        multiple_of=1,
        extra_json_schema={"type": "integer"},
    ),
]
Rank: TypeAlias = Annotated[int, about("Place, from 1")]
ThroughputInterval: TypeAlias = Annotated[Interval | None, about("Interval of the true throughput, per second")]
Cost: TypeAlias = Annotated[float | None, about("US dollars: time x devices x price")]
CostInterval: TypeAlias = Annotated[Interval | None, about("Interval of the true cost, US dollars")]
Energy: TypeAlias = Annotated[float | None, about("Joules: time x devices x power of a device")]
EnergyInterval: TypeAlias = Annotated[Interval | None, about("Interval of the true energy, joules")]
PowerW: TypeAlias = Annotated[float | None, about("Power of one device, watts")]
PowerSource: TypeAlias = Annotated[
    str | None, about("request, measured, measured on other GPUs, estimated from the load, or board power")
]
HourlyPrice: TypeAlias = Annotated[float | None, about("US dollars per hour of one device")]
PriceSource: TypeAlias = Annotated[str | None, about("The request, or provider and date")]


class CompareRequest(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """One workload of any kind except columns, on many GPUs: a list of names and specifications, or "all".

    `prices` (US dollars per hour of one device) and `powers_w` (watts of one device) are keyed by any name of a GPU,
    and override stored prices and measured power. Networks that do not fit one device are tried on up to `max_devices`;
    with `search_parallelism` all networks are.
    """

    workload: Annotated[
        dict[str, Any],
        about("What runs: a kernel, operators, a model or a graph", extra_json_schema={"anyOf": WORKLOADS}),
    ]
    gpus: RankedGpus = "all"
    rank_by: Annotated[RankBy, about("Figure to rank by")] = "latency"
    prices: Prices = {}
    currency: Annotated[str, about("only USD: no exchange rate is known here")] = "USD"
    powers_w: Powers = {}
    search_parallelism: Annotated[
        bool, about("Try splits over devices for every network, not only for those that do not fit one")
    ] = False
    max_devices: MostDevices = 8
    predictor: PredictorName = "auto"
    coverage: Annotated[float, about("Share of true times the interval should hold", gt=0, lt=1)] = 0.8
    save: Annotated[bool, about("Keep the answer: it gets an `id`, for GET /predictions/{id}")] = False


class Split(Struct, frozen=True):
    """How a network is split over devices, with the fields of a workload's `parallelism`."""

    data: Annotated[int, about("Replicas that share the batch")]
    tensor: Annotated[int, about("Devices that share each layer")]
    pipeline: Annotated[int, about("Stages of whole layers")]
    microbatches: Annotated[int, about("Microbatches of a step, per replica")]
    nodes: Annotated[int, about("Machines of the devices")]
    zero: Annotated[int, about("Stage of ZeRO, 0 to 3")]


class Compared(Struct, frozen=True):
    """One GPU's figures for one step of a network, one launch of a kernel, or one run of a list of operators.

    Null means unknown: no price, no power, or a workload that takes no time. `cost_usd` is time x devices x price,
    `energy_j` is time x devices x power per device; throughput per dollar and per joule come from the central
    estimates. `memory` is per device. `pareto` is true if no other GPU is at least as fast, cheap and frugal and better
    in one of these. `indistinguishable_from` lists GPUs whose order relative to this one, by the ranked figure, is not
    statistically certain.
    """

    rank: Rank
    gpu: GpuId
    devices: DeviceCount
    parallelism: Annotated[Split | None, about("How the network is split over devices")]
    latency_ms: LatencyMs
    interval_ms: IntervalMs
    throughput_per_s: Annotated[
        float | None, about("Sequences or images per second, tokens in decode; of other workloads runs per second")
    ]
    throughput_interval_per_s: ThroughputInterval
    cost_usd: Cost
    cost_interval_usd: CostInterval
    energy_j: Energy
    energy_interval_j: EnergyInterval
    power_w: PowerW
    power_source: PowerSource
    price_usd_per_hour: HourlyPrice
    price_source: PriceSource
    throughput_per_usd: Annotated[float | None, about("Sequences, images or runs per US dollar")]
    throughput_per_joule: Annotated[float | None, about("Sequences, images or runs per joule")]
    memory: Memory
    bound: Bound
    support: Support
    predictor: Answerer
    pareto: Annotated[bool, about("Pareto-optimal in time, cost and energy among GPUs that fit")]
    indistinguishable_from: Annotated[list[str], about("GPUs statistically tied with this one")]
    warnings: Warnings
    warning_codes: WarningCodes


class CompareResponse(Struct, frozen=True):
    """The GPUs in ranked order. `skipped` are those of "all" that cannot run the workload; `notes` apply to all rows.

    GPUs without the ranked figure, and after them those with too little memory, come last.
    """

    rank_by: Annotated[RankBy, about("Figure ranked by")]
    ranking: Annotated[list[Compared], about("GPUs, best first")]
    skipped: SkippedGpus
    notes: Notes
    id: SavedId = UNSET


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
