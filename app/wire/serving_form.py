"""JSON structs of kind `serving` in POST /predict: an LLM behind a serving engine under a load; and of llm-d.

llm-d's inference gateway sends the state of one engine before a request, in names and meanings of its own, and reads
the request's times from the answer. Fields that later versions send besides are ignored.
"""

from __future__ import annotations

import datetime
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct

from app.stacks.registry import default_stack
from app.wire.examples import EXAMPLES
from app.wire.field_facts import WHOLE, about
from app.wire.kernel_workload import Name
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
MOST_IN_FLIGHT, MOST_TRACED = 2**16, 20_000
InFlight: TypeAlias = Annotated[float, Meta(ge=1, le=MOST_IN_FLIGHT, **WHOLE)]
Rate: TypeAlias = Annotated[float, about("Requests per second, Poisson arrivals", ge=1e-6, le=1e6)]
# Longer requests take longer than a simulation may.
ServedTokens: TypeAlias = Annotated[float, Meta(ge=1, le=2**21, **WHOLE)]
Fraction: TypeAlias = Annotated[float, Meta(ge=0, lt=1)]
BudgetTokens: TypeAlias = Annotated[float, Meta(ge=16, le=2**20, **WHOLE)]
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
    network_bytes_per_s: Annotated[float, about("what a device can send to other nodes, one way", ge=1e6, le=1e13)] = (
        25e9
    )


class RequestTrace(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Recorded requests as columns of one length: seconds of arrival, tokens of prompts and of outputs."""

    arrival_s: Annotated[
        list[Annotated[float, Meta(ge=0, le=1e9)]],
        about("Time of arrival of each request, seconds", min_length=1, max_length=MOST_TRACED),
    ]
    input_tokens: Annotated[list[ServedTokens], about("Tokens of each prompt", min_length=1, max_length=MOST_TRACED)]
    output_tokens: Annotated[list[ServedTokens], about("Tokens of each answer", min_length=1, max_length=MOST_TRACED)]


class ServingLoad(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """One of: a closed loop at `concurrency`, Poisson arrivals at `rate_per_s`, a `burst` at once, or a `trace`."""

    concurrency: Annotated[
        InFlight | None, about("Requests in flight; each answer is followed by the next request")
    ] = None
    rate_per_s: Annotated[Rate | None, about("Requests per second, Poisson arrivals")] = None
    burst: Annotated[InFlight | None, about("Requests that arrive at once")] = None
    trace: Annotated[RequestTrace | None, about("Recorded requests")] = None


class Speculative(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Speculative decoding: tokens that a draft model proposes in a step, of which the model keeps the first ones."""

    tokens: Annotated[float, about("Tokens drafted in a step", ge=1, le=32, **WHOLE, title="Drafted tokens")]
    acceptance: Annotated[
        float, about("Probability that a drafted token is kept, given that those before it were", ge=0, le=1)
    ]
    draft_share: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        about("Time of drafting a token over that of a decode step; absent: that of one layer"),
    ] = None


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
    load: Annotated[ServingLoad, about("One of concurrency, rate_per_s, burst and trace")]
    prefix_hit: Annotated[
        Fraction, about("Share of a prompt that the engine's cache holds already", title="Prefix hits")
    ] = 0.0
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
        about("Most decode steps that prompts wait for others; absent: the stack's default", title="Wait of prompts"),
    ] = None
    prefill_wait_tokens: Annotated[
        BudgetTokens | None, about("Tokens of waiting prompts that end their wait; absent: no number of them")
    ] = None
    speculative: Annotated[Speculative | None, about("Speculative decoding; absent: none")] = None
    prefill_pool: Annotated[PrefillPool | None, about("Engines of their own for prompts; absent: none")] = None
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
    host_version: Annotated[str, about("Version of the times of the stack's host, as in GET /predictors")]


class ServedFigures(Struct, frozen=True):
    """What users of a served model see. `saturated` loads have no times, but a highest rate and its cause."""

    ttft_ms: Annotated[ServedTime | None, about("Time to first token, waiting included; null: saturated")]
    tpot_ms: Annotated[
        ServedTime | None, about("Time per output token after the first; null: saturated, or one token per answer")
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


# Of one request to /predict/bulk; the gateway sends 100 at most.
MOST_STATES = 1000
# The gateway asks servers of this type over HTTP; of another it computes the times itself, from coefficients.
MODEL_TYPE = "xgboost"
_Count: TypeAlias = Annotated[float, Meta(ge=0, le=2**21)]
_Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]


class EngineState(Struct, kw_only=True, frozen=True):
    """State of an engine, and the request that may be sent to it."""

    kv_cache_percentage: Annotated[_Share, about("Share of the KV cache in use, 0 to 1")]
    input_token_length: Annotated[_Count, about("Tokens of the request's prompt")]
    num_request_waiting: Annotated[_Count, about("Requests that wait in the engine")]
    num_request_running: Annotated[_Count, about("Requests that the engine runs")]
    num_tokens_generated: Annotated[_Count, about("Tokens that the request has generated already")]
    prefix_cache_score: Annotated[_Share, about("Share of the prompt that the engine has cached, 0 to 1")]


class EngineStates(Struct, kw_only=True, frozen=True):
    """States of several engines, or several requests."""

    requests: Annotated[list[EngineState], about("One entry per prediction", min_length=1, max_length=MOST_STATES)]


class NextRequestTimes(Struct, kw_only=True, frozen=True):
    """Mean times of a request in such a state; bounds hold the true mean with the saved prediction's coverage."""

    ttft_ms: Annotated[float, about("Mean time to first token, milliseconds")]
    tpot_ms: Annotated[float, about("Mean time per output token after the first, milliseconds")]
    ttft_uncertainty: Annotated[float, about("Standard deviation of ttft_ms, milliseconds")]
    tpot_uncertainty: Annotated[float, about("Standard deviation of tpot_ms, milliseconds")]
    ttft_prediction_bounds: Annotated[list[float], about("Low and high end of ttft_ms, milliseconds")]
    tpot_prediction_bounds: Annotated[list[float], about("Low and high end of tpot_ms, milliseconds")]
    predicted_at: Annotated[datetime.datetime, about("Time of the answer, UTC")]
    model_type: Annotated[str, about("Always xgboost: of such servers the gateway asks over HTTP")]
    objective_type: Annotated[str, about("What the times are: mean")]
    quantile: Annotated[float, about("Quantile that the times are, 0.5")]
    last_model_load: Annotated[datetime.datetime | None, about("Always null")] = None


class NextRequestsTimes(Struct, kw_only=True, frozen=True):
    """Times of all requests, in their order."""

    predictions: Annotated[list[NextRequestTimes], about("One entry per request, in their order")]
    errors: Annotated[list[str], about("Always empty: a wrong request refuses all")] = []
    total_requests: Annotated[int, about("Number of requests")]
    successful_predictions: Annotated[int, about("Number of answers")]
    failed_predictions: Annotated[int, about("Always 0")] = 0
    processing_time_ms: Annotated[float, about("Time that the answer took, milliseconds")]


class PredictorStatus(Struct, kw_only=True, frozen=True):
    """What the gateway asks before it sends states."""

    is_ready: Annotated[bool, about("Always true: an answer without training")] = True
    model_type: Annotated[str, about("Always xgboost: of such servers the gateway asks over HTTP")]
    objective_type: Annotated[str, about("What the times are: mean")]
    quantile: Annotated[float, about("Quantile that the times are, 0.5")]
    last_model_load: Annotated[datetime.datetime | None, about("Always null")] = None
    training_server_url: Annotated[str, about("Always empty")] = ""
    models_exist: Annotated[dict[str, bool], about("That both times are predicted")]


STATE_EXAMPLE: dict[str, Any] = EXAMPLES["engine_state"]
STATES_EXAMPLE: dict[str, Any] = {"requests": [STATE_EXAMPLE]}
