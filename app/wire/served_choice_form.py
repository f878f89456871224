"""JSON structs of served models in POST /compare and POST /plan: milliseconds, US dollars, joules."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import UNSET, Struct

from app.wire.compare_form import HourlyPrice, PowerSource, PowerW, PriceSource, Rank
from app.wire.field_facts import about
from app.wire.job_plan_form import BestGpu, Meets, Missing
from app.wire.prediction_form import (
    Answerer,
    Bound,
    DeviceCount,
    GpuId,
    Interval,
    Memory,
    Notes,
    SavedId,
    SkippedGpus,
    Support,
    WarningCodes,
    Warnings,
)
from app.wire.rankings import RankBy
from app.wire.serving_form import ServedFigures

TokenCost: TypeAlias = Annotated[float | None, about("US dollars per million generated tokens; null: no price")]


class ServedSplit(Struct, frozen=True):
    """How an engine is split and how many there are, with the fields of a workload's `parallelism`."""

    tensor: Annotated[int, about("Devices that share each layer")]
    pipeline: Annotated[int, about("Stages of whole layers")]
    expert: Annotated[int, about("Devices, out of data x tensor, that share the experts")]
    attention_data: Annotated[
        int, about("Replicas of attention among the tensor-parallel devices; the rest of them share each")
    ]
    replicas: Annotated[int, about("Engines")]
    nodes: Annotated[int, about("Machines of the devices")]


ServedParallelism: TypeAlias = Annotated[ServedSplit, about("How an engine is split, and how many there are")]


class ServedCost(Struct, frozen=True):
    """Costs and energy of a deployment; null where no price, power or throughput is known.

    `cost_per_million_tokens` and `energy_per_token_j` are for generated tokens, all devices together.
    """

    usd_per_hour: Annotated[float | None, about("US dollars per hour of all devices; null: no price")]
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

    `tokens_per_s_per_user` is generated tokens per second that a user sees after the first. `pareto`: no other GPU type
    gives a user as many tokens a second and as many per GPU, and is better in one.
    """

    rank: Rank
    gpu: GpuId
    devices: DeviceCount
    parallelism: ServedParallelism
    latency_ms: Annotated[float | None, about("Predicted time, milliseconds")]
    interval_ms: Annotated[Interval | None, about("Interval of the true time, milliseconds")]
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
    pareto: Annotated[bool, about("Pareto-optimal in time, cost and energy among GPUs that fit")]
    warnings: Warnings
    warning_codes: WarningCodes


class ServingCompareResponse(Struct, frozen=True):
    """GPU types in ranked order; those that are saturated, and after them those that do not fit, come last."""

    rank_by: Annotated[RankBy, about("Figure to rank by")]
    ranking: Annotated[list[ComparedServing], about("GPUs, best first")]
    skipped: SkippedGpus
    notes: Notes
    id: SavedId = UNSET


class ChosenSettings(Struct, frozen=True):
    """Fields of the workload that a choice sets; null: as in the request, or the default of the model or the stack."""

    dtype: Annotated[str | None, about("Number format of the weights; null: the model's own")]
    kv_dtype: Annotated[str | None, about("Number format of keys and values; null: that of attention")]
    max_batched_tokens: Annotated[
        int | None, about("Most tokens of a step of an attention replica; null: the stack's default")
    ]
    max_sequences: Annotated[
        int | None, about("Most sequences of an attention replica at once; null: the stack's default")
    ]


class ServedChoice(Struct, frozen=True):
    """The deployment of one GPU type that is cheapest among those that meet the limits, or else comes closest.

    `probability` is that of meeting all limits together, given the intervals; `missing` lists those that are not met.
    """

    rank: Rank
    gpu: GpuId
    devices: DeviceCount
    parallelism: ServedParallelism
    settings: Annotated[ChosenSettings, about("Fields of the workload that the choice sets beside its parallelism")]
    meets: Meets
    probability: Annotated[float, about("Probability that all goals are met")]
    cost: Annotated[ServedCost, about("Cost and energy of the deployment at this rate")]
    memory: Memory
    predictor: Answerer
    serving: Annotated[ServedFigures, about("What users of the served model see at this rate")]
    missing: Missing
    warnings: Warnings
    warning_codes: WarningCodes


class ParetoPoint(Struct, frozen=True):
    """A deployment and load of the Pareto set of tokens per second and user against tokens per second and GPU."""

    gpu: GpuId
    devices: DeviceCount
    parallelism: Annotated[ServedSplit, about("How the network is split over devices")]
    dtype: Annotated[str | None, about("Number format of the weights; null: the model's own")]
    kv_dtype: Annotated[str | None, about("Number format of keys and values; null: that of attention")]
    concurrency: Annotated[int, about("Requests in flight on one engine")]
    tokens_per_s_per_user: Annotated[float, about("Generated tokens per second that a user sees after the first")]
    tokens_per_s_per_gpu: Annotated[float, about("Generated tokens per second over devices")]
    cost_per_million_tokens: TokenCost


class ServingPlanResponse(Struct, frozen=True):
    """Choices in order: those that meet the limits, cheapest first; then those that come closest.

    `best` is the first that meets all limits, or null. `pareto` is over all deployments of one engine in closed loops.
    """

    rate_per_s: Annotated[float, about("Requests per second that were planned for")]
    percentile: Annotated[float, about("Percentage of requests that keep the limits")]
    best: BestGpu
    choices: Annotated[list[ServedChoice], about("Choices that meet the goals, cheapest first; then the closest")]
    pareto: Annotated[list[ParetoPoint], about("Pareto-optimal in time, cost and energy among GPUs that fit")]
    skipped: SkippedGpus
    notes: Notes
    id: SavedId = UNSET
