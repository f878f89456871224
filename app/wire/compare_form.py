"""JSON structs of POST /compare: milliseconds, bytes, US dollars, joules."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct

from app.bands.coverage import COVERAGE
from app.wire.examples import EXAMPLES
from app.wire.field_facts import WHOLE, about
from app.wire.kernel_workload import GpuRef, PowerCap, StrictNames
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
    RequestedCoverage,
    RequestedPredictor,
    Save,
    SavedId,
    SkippedGpus,
    Support,
    WarningCodes,
    Warnings,
)
from app.wire.serving_form import MeanRequestIntervalMs, MeanRequestMs, ServedFigures

# Figures that a comparison ranks GPUs by.
RANKINGS = ("latency", "throughput", "cost", "energy")
# Of served models alone.
SERVED_RANKINGS = ("tokens_per_s_per_gpu", "cost_per_million_tokens")
RankBy: TypeAlias = Literal[
    "latency", "throughput", "cost", "energy", "tokens_per_s_per_gpu", "cost_per_million_tokens"
]
# With more devices the search over parallel sizes takes seconds, and links between racks are not modelled.
MOST_DEVICES = 64
_REF = "#/components/schemas/{name}"
_KINDS = ("KernelWorkload", "OperatorsWorkload", "ModelWorkload", "GraphWorkload", "ServingWorkload")
WORKLOADS = [{"$ref": _REF.format(name=name)} for name in _KINDS]

Rank: TypeAlias = Annotated[int, about("Place, from 1")]
ThroughputInterval: TypeAlias = Annotated[Interval | None, about("Interval of the true throughput, per second")]
Cost: TypeAlias = Annotated[float | None, about("US dollars: time x devices x price")]
CostInterval: TypeAlias = Annotated[Interval | None, about("Interval of the true cost, US dollars")]
Energy: TypeAlias = Annotated[float | None, about("Joules: time x devices x power of a device")]
EnergyInterval: TypeAlias = Annotated[Interval | None, about("Interval of the true energy, joules")]
PowerW: TypeAlias = Annotated[float | None, about("Power of one device, watts")]
PowerSource: TypeAlias = Annotated[str | None, about("request, measured, estimated from the load, or board power")]
HourlyPrice: TypeAlias = Annotated[float | None, about("US dollars per hour of one device")]
PriceSource: TypeAlias = Annotated[
    str | None, about("The request; or provider, region, term, source and date; or of owned GPUs, electricity")
]
PriceTerm: TypeAlias = Literal["on_demand", "spot", "reserved"]


class ManyGpusRequest(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """One workload of any kind except columns, on many GPUs: a list of names and specifications, or "all"."""

    workload: Annotated[
        dict[str, Any],
        about(
            "What runs: a kernel, operators, a model, a graph or a served model", extra_json_schema={"anyOf": WORKLOADS}
        ),
    ]
    gpus: Annotated[
        Annotated[list[GpuRef], Meta(min_length=1, max_length=MAX_GPUS)] | Literal["all"],
        about('Ids, aliases or specifications of GPUs; "all": the whole catalogue'),
    ] = "all"
    prices: Annotated[
        dict[str, float],
        about("US dollars per hour of one device, by any name of the GPU; override stored prices", unit="USD"),
    ] = {}
    price_term: Annotated[PriceTerm, about("Term of the stored prices that are used")] = "on_demand"
    owned: Annotated[
        Annotated[list[Annotated[str, Meta(min_length=1, max_length=200)]], Meta(max_length=MAX_GPUS)],
        about("GPUs that are yours, by any name: they cost electricity, and of `prices` what is written off an hour"),
    ] = []
    usd_per_kwh: Annotated[
        Annotated[float, Meta(ge=0, le=100)] | None,
        about("US dollars per kWh of electricity, that of owned GPUs", unit="USD"),
    ] = None
    currency: Annotated[str, about("only USD: no exchange rate is known here")] = "USD"
    powers_w: Annotated[
        dict[str, float], about("Watts of one device, by any name of the GPU; override the power model", unit="W")
    ] = {}
    duty_cycle: Annotated[
        Annotated[float, Meta(gt=0, le=1)] | None,
        about(
            "Share of all hours in which a served model's devices are rented and bear the load: a month costs the"
            " hourly price x 730 h x this; owned GPUs idle the rest of the hours; absent: 1",
            unit="share",
        ),
    ] = None
    max_devices: Annotated[
        float, about("Most devices that a split or plan may take", ge=1, le=MOST_DEVICES, **WHOLE)
    ] = 8
    predictor: RequestedPredictor = "auto"
    coverage: RequestedCoverage = COVERAGE
    save: Save = False
    strict_names: StrictNames = False
    power_cap_w: PowerCap = None


class CompareRequest(ManyGpusRequest, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A workload on many GPUs, and the figure to rank them by."""

    rank_by: Annotated[RankBy, about("Figure to rank by")] = "latency"
    search_parallelism: Annotated[
        bool, about("Try splits over devices for every network, not only for those that do not fit one")
    ] = False


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

    Null means unknown: no price, no power, or a workload that takes no time. `memory` is per device; throughput per
    dollar and per joule come from the central estimates.
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


class ServedSplit(Struct, frozen=True):
    """How an engine is split and how many there are, with the fields of a workload's `parallelism`."""

    tensor: Annotated[int, about("Devices that share each layer")]
    pipeline: Annotated[int, about("Stages of whole layers")]
    expert: Annotated[int, about("Devices of an engine that share the experts")]
    attention_data: Annotated[
        int, about("Replicas of attention among the tensor-parallel devices; the rest of them share each")
    ]
    replicas: Annotated[int, about("Engines")]
    nodes: Annotated[int, about("Machines of an engine")]


ServedParallelism: TypeAlias = Annotated[ServedSplit, about("How an engine is split, and how many there are")]
TokenCost: TypeAlias = Annotated[
    float | None, about("US dollars of all devices per million generated tokens, prompts included; null: no price")
]


class ServedCost(Struct, frozen=True):
    """Costs and energy of a deployment; null where no price, power or throughput is known."""

    usd_per_hour: Annotated[float | None, about("US dollars per hour of all devices; null: no price")]
    monthly_usd: Annotated[
        float | None,
        about(
            "US dollars per month: usd_per_hour x 730 h x duty_cycle, of owned GPUs also of idle hours; null: no price"
        ),
    ]
    usd_per_million_input_tokens: Annotated[
        float | None,
        about(
            "US dollars per million input tokens, those of the prefix cache too, for the share of the price that is"
            " the prompts' share of the devices' busy time; null: no price"
        ),
    ]
    usd_per_million_output_tokens: Annotated[
        float | None, about("US dollars per million generated tokens, for the rest of the price; null: no price")
    ]
    cost_per_million_tokens: TokenCost
    energy_per_token_j: Annotated[
        float | None, about("Joules per generated token, all devices together; null: no power")
    ]
    power_w: PowerW
    power_source: PowerSource
    price_usd_per_hour: HourlyPrice
    price_source: PriceSource


class ComparedServing(Struct, frozen=True):
    """One GPU type's figures for a served model under the requested load.

    `pareto`: no other GPU type gives a user as many tokens a second and as many per GPU, and is better in one.
    """

    rank: Rank
    gpu: GpuId
    devices: DeviceCount
    parallelism: ServedParallelism
    latency_ms: MeanRequestMs
    interval_ms: MeanRequestIntervalMs
    tokens_per_s: Annotated[float | None, about("Generated tokens per second, all devices together; null: saturated")]
    tokens_per_s_per_gpu: Annotated[float | None, about("Generated tokens per second over devices; null: saturated")]
    tokens_per_s_per_user: Annotated[
        float | None, about("Generated tokens per second that a user sees after the first")
    ]
    cost: Annotated[ServedCost, about("Cost and energy of the deployment")]
    cost_per_million_tokens: TokenCost
    memory: Memory
    bound: Bound
    support: Support
    predictor: Answerer
    serving: Annotated[ServedFigures, about("What users of the served model see")]
    pareto: Annotated[bool, about("Pareto-optimal in tokens per second and user, and per second and GPU")]
    warnings: Warnings
    warning_codes: WarningCodes


class ServingCompareResponse(Struct, frozen=True):
    """GPU types in ranked order; those that are saturated, and after them those that do not fit, come last."""

    rank_by: Annotated[RankBy, about("Figure ranked by")]
    ranking: Annotated[list[ComparedServing], about("GPUs, best first")]
    skipped: SkippedGpus
    notes: Notes
    id: SavedId = UNSET


COMPARE_EXAMPLE: dict[str, Any] = {"workload": MODEL_EXAMPLE["workload"], **EXAMPLES["compare"]}
