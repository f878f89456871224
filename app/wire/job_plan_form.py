"""JSON structs of POST /plan: seconds for a job, milliseconds for a step, US dollars, joules."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from msgspec import UNSET, Meta, Struct

from app.wire.compare_form import (
    COMPARE_EXAMPLE,
    Cost,
    CostInterval,
    Energy,
    EnergyInterval,
    HourlyPrice,
    ManyGpusRequest,
    PowerSource,
    PriceSource,
    Rank,
    ServedCost,
    ServedParallelism,
    Split,
    ThroughputInterval,
    TokenCost,
)
from app.wire.examples import EXAMPLES
from app.wire.field_facts import about
from app.wire.network_form import KvDtype, NetworkDtype, Samples
from app.wire.prediction_form import (
    Answerer,
    Coverage,
    DeviceCount,
    Fits,
    GpuId,
    Interval,
    Memory,
    Notes,
    SavedId,
    SkippedGpus,
    WarningCodes,
    Warnings,
)
from app.wire.serving_form import ServedFigures

Positive: TypeAlias = Annotated[float, Meta(ge=1e-12, le=1e15)]
# Number formats to choose among: every pair of them is a search of its own.
MOST_FORMATS = 4
Share: TypeAlias = Annotated[float, Meta(gt=0, lt=1)]

Meets: TypeAlias = Annotated[bool, about("Whether all goals are met")]
Missing: TypeAlias = Annotated[list[str], about("Per goal, why it is not met")]
BestGpu: TypeAlias = Annotated[str | None, about("GPU of the first choice that meets the goals; null: none")]


class PlanRequest(ManyGpusRequest, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A job, its goals, and the GPUs to choose from. A job has at least one of deadline, budget and throughput.

    The job is `steps` runs of the workload (default 1; one epoch of a network with a `dataset_size`). Training steps
    run one after another on one set of devices; all other steps are independent, and copies share them. `deadline_s`
    and `budget_usd` are for the whole job; `throughput_per_s` counts sequences or images of a network, runs of anything
    else, over all copies. All goals must hold together with `probability`. The time limit holds with
    `limit_probability`. The other fields are those of POST /compare.

    A served model (kind serving, with a load `rate_per_s` or a `trace`) has limits on times of its requests instead:
    `ttft_ms`, `tpot_ms` and `e2e_ms`, which `percentile` of the requests must keep. `max_devices` then is of one
    engine; there are as many engines as the rate needs, and their token budget and most sequences are chosen where the
    workload leaves them out. `dtypes` and `kv_dtypes` are number formats of the weights and of keys and values to
    choose among, in place of the workload's. Splits of the model x pairs of formats x GPUs over 20,000 are refused
    (413): send fewer gpus, dtypes or kv_dtypes, or less max_devices.
    """

    steps: Annotated[
        Samples | None,
        about("Runs of the workload in the job; absent: 1, or one epoch with `dataset_size`", unit="runs"),
    ] = None
    deadline_s: Annotated[Positive | None, about("Most time of the whole job, seconds", unit="seconds")] = None
    budget_usd: Annotated[Positive | None, about("Most cost of the whole job, US dollars", unit="USD")] = None
    throughput_per_s: Annotated[
        Positive | None,
        about("Least throughput of all copies together: sequences, images or runs per second", unit="per_s"),
    ] = None
    ttft_ms: Annotated[
        Positive | None, about("Longest time to first token of a served model, milliseconds", unit="ms")
    ] = None
    tpot_ms: Annotated[
        Positive | None, about("Longest time per output token of a served model, milliseconds", unit="ms")
    ] = None
    e2e_ms: Annotated[
        Positive | None, about("Longest time of a request to a served model, milliseconds", unit="ms")
    ] = None
    percentile: Annotated[
        float, about("Percentage of requests that must keep these times", unit="percent", ge=1, le=99.9)
    ] = 90
    dtypes: Annotated[
        Annotated[list[NetworkDtype], Meta(min_length=1, max_length=MOST_FORMATS)] | None,
        about("Number formats of a served model's weights to choose among; absent: the workload's"),
    ] = None
    kv_dtypes: Annotated[
        Annotated[list[KvDtype], Meta(min_length=1, max_length=MOST_FORMATS)] | None,
        about("Number formats of a served model's keys and values to choose among; absent: the workload's"),
    ] = None
    probability: Annotated[Share, about("Probability that all goals are met", unit="share")] = 0.9
    limit_probability: Annotated[Share, about("Probability that the job keeps its time limit")] = 0.95


class IntervalS(Struct, frozen=True):
    """An interval in seconds that holds the true time with probability `coverage`."""

    low: Annotated[float, about("Lower end")]
    high: Annotated[float, about("Upper end")]
    coverage: Coverage


class JobChoice(Struct, frozen=True):
    """One GPU type with the count that is cheapest among those that meet the goals, or else comes closest.

    `devices` counts all `copies`, each split as in `parallelism`. Cost and energy are for the whole job.
    """

    rank: Rank
    gpu: GpuId
    devices: DeviceCount
    copies: Annotated[int, about("Independent copies that share the steps")]
    parallelism: Annotated[Split | None, about("How the network is split over devices")]
    meets: Meets
    probability: Annotated[float | None, about("Probability that all goals are met")]
    job_s: Annotated[float, about("Time of the whole job, seconds")]
    job_interval_s: Annotated[IntervalS, about("Interval of the true time of the job, seconds")]
    time_limit_s: Annotated[float, about("Time limit to request from a scheduler, seconds")]
    step_ms: Annotated[float, about("Time of one step, milliseconds")]
    step_interval_ms: Annotated[Interval, about("Interval of the true time of a step, milliseconds")]
    throughput_per_s: Annotated[float | None, about("Throughput of all copies together, per second")]
    throughput_interval_per_s: ThroughputInterval
    cost_usd: Cost
    cost_interval_usd: CostInterval
    energy_j: Energy
    energy_interval_j: EnergyInterval
    power_source: PowerSource
    price_usd_per_hour: HourlyPrice
    price_source: PriceSource
    memory: Memory
    predictor: Answerer
    missing: Missing
    warnings: Warnings
    warning_codes: WarningCodes


class Faster(Struct, frozen=True):
    """The probability that the job takes less time on one choice than on each of the others, by GPU."""

    gpu: GpuId
    than: Annotated[dict[str, float], about("Per other GPU, the probability that this one takes less time")]


class Sensitivity(Struct, frozen=True):
    """Effect of `factor` times as much of one figure of the first choice's GPU on a step and on what fits.

    `change` (-0.05: 5 % less time) comes from the physics alone; corrections learned for the actual GPU are not
    changed.
    """

    gpu: GpuId
    field: Annotated[str, about("Figure of the GPU")]
    factor: Annotated[float, about("Times as much of it")]
    step_ms: Annotated[float, about("Time of one step, milliseconds")]
    change: Annotated[float, about("Relative change of a step's time: -0.05 is 5 % less")]
    fits: Fits
    largest_batch: Annotated[int | None, about("Largest batch that fits; 0: none")]


class PlanResponse(Struct, frozen=True):
    """Choices in order: those that meet the goals, cheapest first; then those that come closest.

    `best` is the first that meets all goals, or null. `faster` compares the first few.
    """

    steps: Annotated[float, about("Runs of the workload in the job")]
    best: BestGpu
    choices: Annotated[list[JobChoice], about("Choices that meet the goals, cheapest first; then the closest")]
    faster: Annotated[list[Faster], about("Pairwise probabilities of the first choices' order")]
    sensitivities: Annotated[list[Sensitivity], about("Effect of 10 % more of one figure of the GPU")]
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
    speculative_tokens: Annotated[int | None, about("Tokens drafted in a step; null: no speculative decoding")]


class ServedChoice(Struct, frozen=True):
    """The deployment of one GPU type that is cheapest among those that meet the limits, or else comes closest."""

    rank: Rank
    gpu: GpuId
    devices: DeviceCount
    parallelism: ServedParallelism
    settings: Annotated[ChosenSettings, about("Fields of the workload that the choice sets beside its parallelism")]
    meets: Meets
    probability: Annotated[float, about("Probability that the least likely of the limits is kept")]
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
    devices: Annotated[int, about("Devices of one engine")]
    parallelism: ServedParallelism
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
    pareto: Annotated[
        list[ParetoPoint],
        about("Deployments and loads that are Pareto-optimal in tokens per second and user, and per second and GPU"),
    ]
    skipped: SkippedGpus
    notes: Notes
    id: SavedId = UNSET


PLAN_EXAMPLE: dict[str, Any] = {"workload": COMPARE_EXAMPLE["workload"], **EXAMPLES["plan"]}
