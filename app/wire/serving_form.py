"""JSON structs of kind `serving` in POST /predict: an LLM behind a serving engine under a load."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

from app.stacks.registry import default_stack
from app.wire.examples import EXAMPLES
from app.wire.field_facts import WHOLE, about
from app.wire.kernel_workload import DeviceLink, Name, NetworkRate
from app.wire.network_form import CacheDtype, Config, Devices, NetworkDtype
from app.wire.prediction_form import (
    Answerer,
    BaseRequest,
    Bound,
    GpuId,
    Interval,
    Memory,
    Narrowing,
    SavedId,
    Share,
    SkippedGpus,
    Support,
    WarningCodes,
    Warnings,
    Width,
)

# The serving stack of requests that name none.
DEFAULT_SOFTWARE = default_stack("serving").name
MOST_IN_FLIGHT, MOST_TRACED, MOST_RATE = 2**16, 20_000, 10**6
InFlight: TypeAlias = Annotated[float, Meta(ge=1, le=MOST_IN_FLIGHT, **WHOLE)]
RunRequests: TypeAlias = Annotated[float, Meta(ge=1, le=MOST_TRACED, **WHOLE)]
Rate: TypeAlias = Annotated[float, about("Requests per second, open arrivals", ge=1e-6, le=MOST_RATE)]
# Longer requests take longer than a simulation may.
ServedTokens: TypeAlias = Annotated[float, Meta(ge=1, le=2**21, **WHOLE)]
Fraction: TypeAlias = Annotated[float, Meta(ge=0, lt=1)]
BudgetTokens: TypeAlias = Annotated[float, Meta(ge=16, le=2**20, **WHOLE)]
RoundSteps: TypeAlias = Annotated[float, Meta(ge=1, le=10_000, **WHOLE)]
TpotDefinition: TypeAlias = Literal["output_minus_one", "output"]
TPOT_DEFINITION: TpotDefinition = "output_minus_one"
WaitSteps: TypeAlias = Annotated[float, Meta(ge=0, le=10_000)]
Seed: TypeAlias = Annotated[float, Meta(ge=0, le=2**31, **WHOLE)]
MeanRequestMs: TypeAlias = Annotated[
    float | None, about("Mean time of a request from arrival to its last token, milliseconds; null: saturated")
]
MeanRequestIntervalMs: TypeAlias = Annotated[
    Interval | None, about("Interval of this mean, milliseconds; null: saturated")
]


class ServingParallelism(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """How an engine is split over tensor x pipeline devices on `nodes` machines, and how many engines there are."""

    tensor: Annotated[Devices, about("Devices that share each layer", title="GPUs per replica")] = 1
    pipeline: Annotated[Devices, about("Stages of whole layers", title="Pipeline stages")] = 1
    expert: Annotated[Devices, about("Devices of an engine that share the experts", title="Expert-parallel GPUs")] = 1
    attention_data: Annotated[
        Devices,
        about(
            "Replicas of attention among the tensor-parallel devices; the rest of them share each",
            title="Replicas of attention",
        ),
    ] = 1
    replicas: Annotated[Devices, about("Engines, among which requests are dealt evenly")] = 1
    nodes: Annotated[Devices, about("Machines of an engine", title="Machines")] = 1
    network_bytes_per_s: NetworkRate = 25e9
    link: DeviceLink = None


class RequestTrace(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Recorded requests as columns of one length: seconds of arrival, tokens of prompts and of outputs."""

    arrival_s: Annotated[
        list[Annotated[float, Meta(ge=0, le=1e9)]],
        about("Time of arrival of each request, seconds", min_length=1, max_length=MOST_TRACED),
    ]
    input_tokens: Annotated[list[ServedTokens], about("Tokens of each prompt", min_length=1, max_length=MOST_TRACED)]
    output_tokens: Annotated[list[ServedTokens], about("Tokens of each answer", min_length=1, max_length=MOST_TRACED)]


class ServingLoad(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """One of: a closed loop at `concurrency`, arrivals at `rate_per_s`, a `burst` at once, or a `trace`."""

    concurrency: Annotated[
        InFlight | None, about("Requests in flight; each answer is followed by the next request")
    ] = None
    rate_per_s: Annotated[Rate | None, about("Requests per second, open arrivals")] = None
    burst: Annotated[InFlight | None, about("Requests that arrive at once")] = None
    trace: Annotated[RequestTrace | None, about("Recorded requests")] = None
    burstiness: Annotated[
        Annotated[float, Meta(ge=0.01, le=10_000)] | None,
        about("Shape of the gamma distributed times between arrivals at `rate_per_s`; absent: 1, Poisson arrivals"),
    ] = None
    max_concurrency: Annotated[
        InFlight | None,
        about("Most requests that clients have in flight beside `rate_per_s` or a `trace`; others wait to be sent"),
    ] = None
    requests: Annotated[
        RunRequests | None,
        about(
            "Requests of a run that ends, as a benchmark's, beside `rate_per_s` or `concurrency`: figures are of all"
        ),
    ] = None


class SchedulerFlags(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Flags of an engine's scheduler; the stack's default where one is absent."""

    recv_interval: Annotated[
        RoundSteps | None,
        about("Rounds of decode steps after which the engine looks for new requests: --scheduler-recv-interval"),
    ] = None
    decode_steps: Annotated[
        RoundSteps | None,
        about("Decode steps of a round, which the host schedules at once: --num-continuous-decode-steps"),
    ] = None
    chunk_tokens: Annotated[
        BudgetTokens | None,
        about("Most tokens of prompts in a step of an attention replica, which splits longer ones"),
    ] = None


class Speculative(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Speculative decoding: tokens that a draft model proposes in a step, of which the model keeps the first ones."""

    tokens: Annotated[float, about("Tokens drafted in a step", ge=1, le=32, **WHOLE, title="Drafted tokens")]
    acceptance: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        about("Probability that a drafted token is kept, given that those before it were"),
    ] = None
    acceptance_by_position: Annotated[
        Annotated[list[Annotated[float, Meta(ge=0, le=1)]], Meta(min_length=1, max_length=32)] | None,
        about("In place of it, the share of steps that keep the first drafted token, the second, ..., as engines log"),
    ] = None
    draft: Annotated[
        str | dict[str, Any] | None,
        about('A built-in transformer, or a config.json; absent or "mtp": a layer of multi-token prediction'),
    ] = None
    draft_share: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        about("Time of drafting a token over that of a decode step; absent: that of `draft`"),
    ] = None


class PrefixCache(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Memory of an engine, over all its devices, that holds the keys and values of `prefix_hit`, in proportion."""

    gpu_bytes: Annotated[
        Annotated[float, Meta(ge=0, le=1e15)], about("Bytes of the devices' memory, which sequences then lack")
    ] = 0.0
    host_bytes: Annotated[
        Annotated[float, Meta(ge=0, le=1e15)], about("Bytes of the host's memory, from which hits are fetched")
    ] = 0.0


class PrefillPool(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Engines of their own that compute prompts and send the keys and values to those that decode."""

    parallelism: Annotated[
        ServingParallelism, about("How an engine for prompts is split over devices, and how many there are")
    ] = ServingParallelism()
    replicas: Annotated[Devices | None, about("Engines for prompts; absent: those of its parallelism")] = None


class ServingWorkload(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """An LLM behind a serving engine: `config` is a Hugging Face config.json, or `name` a built-in transformer."""

    kind: Annotated[Literal["serving"], about("Kind of the workload")]
    config: Config = None
    name: Annotated[Name | None, about("A built-in transformer, in place of `config`", title="Model")] = None
    dtype: Annotated[
        NetworkDtype | None, about("Number format of weights and activations; absent: as published", title="Weights")
    ] = None
    kv_dtype: CacheDtype = None
    software: Annotated[
        Name, about("Serving stack: vllm, sglang or trtllm, with or without a version", title="Serving stack")
    ] = DEFAULT_SOFTWARE
    parallelism: Annotated[
        ServingParallelism, about("How an engine is split over devices, and how many engines there are")
    ] = ServingParallelism()
    input_tokens: Annotated[ServedTokens | None, about("Most tokens of a prompt; absent with a trace")] = None
    output_tokens: Annotated[
        Annotated[float, Meta(ge=0, le=2**21, **WHOLE)] | None,
        about("Most tokens of an answer; absent with a trace; 0: prompts are embedded or ranked, not answered"),
    ] = None
    length_spread: Annotated[
        Fraction, about("Lengths are uniform in (1 - this) to 1 of those given", title="Spread of lengths")
    ] = 0.2
    input_spread: Annotated[Fraction | None, about("That of prompts alone; absent: `length_spread`")] = None
    output_spread: Annotated[Fraction | None, about("That of answers alone; absent: `length_spread`")] = None
    load: Annotated[ServingLoad, about("One of concurrency, rate_per_s, burst and trace")]
    prefix_hit: Annotated[
        Fraction, about("Share of a prompt that the engine's cache holds already", title="Prefix hits")
    ] = 0.0
    prefix_cache: Annotated[
        PrefixCache | None, about("Where the cache holds them; absent: on the devices, in memory of no request")
    ] = None
    max_batched_tokens: Annotated[
        BudgetTokens | None,
        about("Most tokens of a step of an attention replica; absent: the stack's default", title="Tokens of a step"),
    ] = None
    max_sequences: Annotated[
        InFlight | None,
        about("Most sequences of an attention replica at once; absent: the stack's default", title="Sequences"),
    ] = None
    memory_share: Annotated[
        Annotated[float, Meta(gt=0, le=1)] | None,
        about("Share of a GPU's memory that the engine may use; absent: the stack's default"),
    ] = None
    prefill_wait_steps: Annotated[
        WaitSteps | None,
        about("Most decode steps that prompts wait for others; absent: the stack's default", title="Batching wait"),
    ] = None
    prefill_wait_tokens: Annotated[
        BudgetTokens | None, about("Tokens of waiting prompts that end their wait; absent: no number of them")
    ] = None
    scheduler: Annotated[SchedulerFlags | None, about("Flags of the scheduler; absent: the stack's defaults")] = None
    speculative: Annotated[Speculative | None, about("Speculative decoding; absent: none")] = None
    prefill_pool: Annotated[PrefillPool | None, about("Engines of their own for prompts; absent: none")] = None
    tpot_definition: Annotated[
        TpotDefinition,
        about("Time after the first token over the tokens after it, or over all output tokens"),
    ] = TPOT_DEFINITION
    method: Annotated[
        Literal["simulation", "closed_form"],
        about("simulation: every request, with percentiles; closed_form: means only"),
    ] = "simulation"
    seed: Annotated[Seed, about("Seed of lengths and arrivals; the same seed gives the same answer")] = 0


class ServingRequest(BaseRequest, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A served model on one GPU type (`gpu`) or on several (`gpus`: a list, or "all" of the catalogue)."""

    workload: Annotated[ServingWorkload, about("The served model and its load")]


class ServedTime(Struct, frozen=True, omit_defaults=True):
    """A time over requests, milliseconds: mean with its interval, and percentiles (null: the closed form has none)."""

    mean: Annotated[float, about("Mean over requests, milliseconds")]
    p50: Annotated[float | None, about("Median over requests, milliseconds; null: not simulated")]
    p90: Annotated[float | None, about("90th percentile over requests, milliseconds; null: not simulated")]
    p99: Annotated[float | None, about("99th percentile over requests, milliseconds; null: not simulated")]
    interval: Annotated[Interval, about("Interval of the mean, milliseconds")]
    width: Width = UNSET
    narrowed_by: Narrowing = UNSET


class ServedSequences(Struct, frozen=True):
    """Sequences of all engines: mean over time, and the most that fit at once."""

    mean: Annotated[float | None, about("Mean over time; null: saturated")]
    limit: Annotated[int, about("Most of the mean request that places and memory allow")]


class KvCacheUse(Struct, frozen=True):
    """Bytes of keys and values on the fullest device: the most that are kept at once, and what it has for them."""

    required_bytes: Annotated[float, about("Most bytes kept at once; where saturated those of one request")]
    capacity_bytes: Annotated[float, about("Bytes that weights, activations and the stack's reserve leave")]


class ServingSteps(Struct, frozen=True):
    """Mean time of an engine's step, milliseconds: of decoding sequences alone, and with prompts."""

    decode: Annotated[float | None, about("Of decoding sequences alone; null: none")]
    mixed: Annotated[float | None, about("With prompts; null: none")]


class SchedulerSettings(Struct, frozen=True):
    """Flags of the scheduler as used."""

    recv_interval: Annotated[int, about("Rounds of decode steps after which the engine looks for new requests")]
    decode_steps: Annotated[int, about("Decode steps of a round")]
    chunk_tokens: Annotated[
        int | None, about("Most tokens of prompts in a step of an attention replica; null: prompts are whole")
    ]


class LoadSettings(Struct, frozen=True):
    """How clients send requests, as used; null: the load has no such figure."""

    burstiness: Annotated[float | None, about("Shape of the gamma distributed times between arrivals; 1: Poisson")]
    max_concurrency: Annotated[int | None, about("Most requests that clients have in flight; null: any number")]


class PrefixCacheSettings(Struct, frozen=True):
    """Tiers of the prefix cache as used."""

    gpu_bytes: Annotated[float, about("Bytes of the devices' memory")]
    host_bytes: Annotated[float, about("Bytes of the host's memory")]
    gpu_hit: Annotated[float, about("Share of a prompt that the devices hold")]
    host_hit: Annotated[float, about("Share of a prompt that is fetched from the host")]
    fetch_ms: Annotated[float, about("Mean time of fetching a prompt's share from the host, milliseconds")]


class SpeculativeSettings(Struct, frozen=True):
    """Speculative decoding as used."""

    tokens: Annotated[int, about("Tokens drafted in a step")]
    acceptance_by_position: Annotated[list[float], about("Share of steps that keep each drafted token")]
    tokens_per_step: Annotated[float, about("Mean tokens of a sequence that a step gives")]
    draft: Annotated[str, about("What drafts: a built-in transformer, config, or mtp")]


class ServingSettings(Struct, frozen=True):
    """Settings of the stack as used: those of the request, else its defaults; tokens and sequences of an engine."""

    software: Annotated[str, about("Family of the serving stack")]
    max_batched_tokens: Annotated[int, about("Most tokens of a step of an attention replica")]
    max_sequences: Annotated[int, about("Most sequences of an attention replica at once")]
    memory_share: Annotated[float, about("Share of a GPU's memory that the engine may use")]
    prefill_wait_steps: Annotated[float, about("Most decode steps that prompts wait for one another")]
    prefill_wait_tokens: Annotated[
        int | None, about("Tokens of waiting prompts that end their wait; null: no number of them")
    ]
    mixes_prefill: Annotated[
        bool, about("Whether prompts are computed beside decoding sequences, or in steps of their own")
    ]
    chunks_prefill: Annotated[bool, about("Whether prompts are split over steps to fill the budget")]
    scheduler: Annotated[SchedulerSettings, about("Flags of the scheduler")]
    load: Annotated[LoadSettings, about("How clients send requests")]
    input_spread: Annotated[float, about("Prompts are uniform in (1 - this) to 1 of their most tokens")]
    output_spread: Annotated[float, about("Answers are uniform in (1 - this) to 1 of their most tokens")]
    tpot_definition: Annotated[TpotDefinition, about("Tokens that tpot_ms is over")]
    speculative: Annotated[SpeculativeSettings | None, about("Speculative decoding; null: none")]
    prefix_cache: Annotated[PrefixCacheSettings | None, about("Tiers of the prefix cache; null: the devices alone")]
    host_version: Annotated[str, about("Version of the times of the stack's host, as in GET /predictors")]
    power_cap_w: Annotated[float | UnsetType, about("Board power that is set, watts; absent: the data sheet's")] = UNSET


class ServedFigures(Struct, frozen=True):
    """What users of a served model see. `saturated` loads have no times, but a highest rate and its cause."""

    ttft_ms: Annotated[ServedTime | None, about("Time to first token, waiting included; null: saturated")]
    tpot_ms: Annotated[
        ServedTime | None,
        about("Time per output token, as settings.tpot_definition; null: saturated, or one token each"),
    ]
    e2e_ms: Annotated[ServedTime | None, about("Time from arrival to the last token; null: saturated")]
    output_tokens_per_s: Annotated[float | None, about("Generated tokens per second, all engines together")]
    output_tokens_per_s_per_gpu: Annotated[float | None, about("Generated tokens per second over devices")]
    requests_per_s: Annotated[float | None, about("Answered requests per second, all engines together")]
    sequences: Annotated[ServedSequences, about("Sequences of all engines at once")]
    kv_cache: Annotated[KvCacheUse, about("Keys and values on the fullest device")]
    step_ms: Annotated[ServingSteps, about("Mean time of an engine's steps, milliseconds")]
    saturated: Annotated[
        bool, about("Whether requests arrive faster than they can be answered, or none fits in memory")
    ]
    saturated_by: Annotated[
        Literal["kv_cache", "max_sequences", "prefill", "host"] | None,
        about("What limits the rate: kv_cache, max_sequences, prefill or host; null: not saturated"),
    ]
    highest_rate_per_s: Annotated[
        float, about("Highest rate of such requests that does not saturate, all engines together")
    ]
    method: Annotated[Literal["simulation", "closed_form"], about("How the figures were computed")]
    settings: Annotated[ServingSettings, about("Settings as used: the request's, else the stack's defaults")]


class ServingPrediction(Struct, frozen=True):
    """The answer for one GPU type: `latency_ms` is the mean end to end, null where the load is saturated.

    `bound`, `support` and `breakdown` are those of a decode step at the mean load; `memory` is per device.
    """

    gpu: GpuId
    latency_ms: MeanRequestMs
    interval_ms: MeanRequestIntervalMs
    bound: Bound
    predictor: Answerer
    support: Support
    memory: Memory
    breakdown: Annotated[list[Share], about("Time of a decode step at the mean load, by groups of operators")]
    warnings: Warnings
    warning_codes: WarningCodes
    devices: Annotated[int, about("Devices of all engines")]
    serving: Annotated[ServedFigures, about("What users of the served model see")]


class ServingResponse(Struct, frozen=True, omit_defaults=True):
    """One entry per GPU in request order; `skipped` are those of "all" that cannot run the model."""

    predictions: Annotated[list[ServingPrediction], about("One entry per GPU, in request order")]
    skipped: SkippedGpus = []
    id: SavedId = UNSET


SERVING_EXAMPLE: dict[str, Any] = EXAMPLES["serving"]
