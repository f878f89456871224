"""JSON structs of served models in POST /compare and POST /plan: milliseconds, US dollars, joules."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from app.wire.prediction_form import AnsweredBy, Interval, MemoryUse, Skipped
from app.wire.rankings import RankBy
from app.wire.serving_form import ServedFigures


class ServedSplit(Struct, frozen=True):
    """How an engine is split and how many there are, with the fields of a workload's `parallelism`."""

    tensor: int
    pipeline: int
    expert: int
    attention_data: int
    replicas: int
    nodes: int


class ServedCost(Struct, frozen=True):
    """Costs and energy of a deployment; null where no price, power or throughput is known.

    `cost_per_million_tokens` and `energy_per_token_j` are for generated tokens, all devices together.
    """

    usd_per_hour: float | None
    cost_per_million_tokens: float | None
    energy_per_token_j: float | None
    power_w: float | None
    power_source: str | None
    price_usd_per_hour: float | None
    price_source: str | None


class ComparedServing(Struct, frozen=True):
    """One GPU type's figures for a served model under the requested load.

    `tokens_per_s_per_user` is generated tokens per second that a user sees after the first. `pareto`: no other GPU type
    gives a user as many tokens a second and as many per GPU, and is better in one.
    """

    rank: int
    gpu: str
    devices: int
    parallelism: ServedSplit
    latency_ms: float | None
    interval_ms: Interval | None
    tokens_per_s: float | None
    tokens_per_s_per_gpu: float | None
    tokens_per_s_per_user: float | None
    cost: ServedCost
    cost_per_million_tokens: float | None
    memory: MemoryUse
    bound: Literal["compute", "memory", "launch", "communication"]
    support: Literal["measured", "interpolated", "extrapolated"]
    predictor: AnsweredBy
    serving: ServedFigures
    pareto: bool
    warnings: list[str]


class ServingCompareResponse(Struct, frozen=True):
    """GPU types in ranked order; those that are saturated, and after them those that do not fit, come last."""

    rank_by: RankBy
    ranking: list[ComparedServing]
    skipped: list[Skipped]
    notes: list[str]
    id: int | UnsetType = UNSET


class ChosenSettings(Struct, frozen=True):
    """Fields of the workload that a choice sets; null: as in the request, or the default of the model or the stack."""

    dtype: str | None
    kv_dtype: str | None
    max_batched_tokens: int | None
    max_sequences: int | None


class ServedChoice(Struct, frozen=True):
    """The deployment of one GPU type that is cheapest among those that meet the limits, or else comes closest.

    `probability` is that of meeting all limits together, given the intervals; `missing` lists those that are not met.
    """

    rank: int
    gpu: str
    devices: int
    parallelism: ServedSplit
    settings: ChosenSettings
    meets: bool
    probability: float
    cost: ServedCost
    memory: MemoryUse
    predictor: AnsweredBy
    serving: ServedFigures
    missing: list[str]
    warnings: list[str]


class ParetoPoint(Struct, frozen=True):
    """A deployment and load of the Pareto set of tokens per second and user against tokens per second and GPU."""

    gpu: str
    devices: int
    parallelism: ServedSplit
    dtype: str | None
    kv_dtype: str | None
    concurrency: int
    tokens_per_s_per_user: float
    tokens_per_s_per_gpu: float
    cost_per_million_tokens: float | None


class ServingPlanResponse(Struct, frozen=True):
    """Choices in order: those that meet the limits, cheapest first; then those that come closest.

    `best` is the first that meets all limits, or null. `pareto` is over all deployments of one engine in closed loops.
    """

    rate_per_s: float
    percentile: float
    best: str | None
    choices: list[ServedChoice]
    pareto: list[ParetoPoint]
    skipped: list[Skipped]
    notes: list[str]
    id: int | UnsetType = UNSET
