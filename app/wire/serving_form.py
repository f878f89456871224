"""JSON structs of kind `serving` in POST /predict: an LLM behind a serving engine under a load."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

from app.wire.kernel_workload import Name
from app.wire.network_form import Devices, KvDtype, NetworkDtype
from app.wire.prediction_form import AnsweredBy, BaseRequest, Interval, MemoryUse, Share, Skipped

MOST_IN_FLIGHT, MOST_TRACED = 2**16, 20_000
_WHOLE: dict[str, Any] = {"multiple_of": 1.0, "extra_json_schema": {"type": "integer"}}
InFlight: TypeAlias = Annotated[float, Meta(ge=1, le=MOST_IN_FLIGHT, **_WHOLE)]
Rate: TypeAlias = Annotated[float, Meta(ge=1e-6, le=1e6, description="Requests per second, Poisson arrivals")]
# Longer requests take longer than a simulation may.
ServedTokens: TypeAlias = Annotated[float, Meta(ge=1, le=2**21, **_WHOLE)]
Fraction: TypeAlias = Annotated[float, Meta(ge=0, lt=1)]
BudgetTokens: TypeAlias = Annotated[float, Meta(ge=16, le=2**20, **_WHOLE)]
WaitSteps: TypeAlias = Annotated[float, Meta(ge=0, le=10_000)]
Seed: TypeAlias = Annotated[float, Meta(ge=0, le=2**31, **_WHOLE)]


class ServingParallelism(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """How an engine is split over tensor x pipeline devices on `nodes` machines, and how many such engines there are.

    `expert` of its devices share the experts. `attention_data` of the tensor-parallel devices are replicas of
    attention, and the rest of them share each.
    """

    tensor: Devices = 1
    pipeline: Devices = 1
    expert: Devices = 1
    attention_data: Devices = 1
    replicas: Devices = 1
    nodes: Devices = 1
    network_bytes_per_s: Annotated[
        float, Meta(ge=1e6, le=1e13, description="what a device can send to other nodes, one way")
    ] = 25e9


class RequestTrace(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Recorded requests as columns of one length: seconds of arrival, tokens of prompts and of outputs."""

    arrival_s: Annotated[list[Annotated[float, Meta(ge=0, le=1e9)]], Meta(min_length=1, max_length=MOST_TRACED)]
    input_tokens: Annotated[list[ServedTokens], Meta(min_length=1, max_length=MOST_TRACED)]
    output_tokens: Annotated[list[ServedTokens], Meta(min_length=1, max_length=MOST_TRACED)]


class ServingLoad(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """One of: a closed loop at `concurrency`, Poisson arrivals at `rate_per_s`, a `burst` at once, or a `trace`."""

    concurrency: InFlight | None = None
    rate_per_s: Rate | None = None
    burst: InFlight | None = None
    trace: RequestTrace | None = None


class Speculative(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Speculative decoding: `tokens` drafted a step, each accepted with probability `acceptance` after the one before.

    `draft_share` is the time of drafting a token over that of a decode step; by default that of one of the model's
    layers.
    """

    tokens: Annotated[float, Meta(ge=1, le=32, **_WHOLE)]
    acceptance: Annotated[float, Meta(ge=0, le=1)]
    draft_share: Annotated[float, Meta(ge=0, le=1)] | None = None


class PrefillPool(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Engines of their own that compute prompts and send the keys and values to those that decode.

    `replicas` is the number of these engines, in place of that of `parallelism`.
    """

    parallelism: ServingParallelism = ServingParallelism()
    replicas: Devices | None = None


class ServingWorkload(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """An LLM behind a serving engine: `config` is a Hugging Face config.json, or `name` a built-in transformer.

    `software` is a family of serving stacks (vllm, sglang, trtllm), with or without a version. Lengths are uniform in
    (1 - `length_spread`) to 1 of those given. Settings that are left out are the stack's defaults, which the answer
    has. A trace brings its lengths itself.
    """

    kind: Literal["serving"]
    config: dict[str, Any] | None = None
    name: Name | None = None
    dtype: NetworkDtype | None = None
    kv_dtype: KvDtype | None = None
    software: Name = "vllm"
    parallelism: ServingParallelism = ServingParallelism()
    input_tokens: ServedTokens | None = None
    output_tokens: ServedTokens | None = None
    length_spread: Fraction = 0.2
    load: ServingLoad
    prefix_hit: Fraction = 0.0
    max_batched_tokens: BudgetTokens | None = None
    max_sequences: InFlight | None = None
    memory_share: Annotated[float, Meta(gt=0, le=1)] | None = None
    prefill_wait_steps: WaitSteps | None = None
    prefill_wait_tokens: BudgetTokens | None = None
    speculative: Speculative | None = None
    prefill_pool: PrefillPool | None = None
    method: Literal["simulation", "closed_form"] = "simulation"
    seed: Seed = 0


class ServingRequest(BaseRequest, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A served model on one GPU type (`gpu`) or on several (`gpus`: a list, or "all" of the catalogue)."""

    workload: ServingWorkload


class ServedTime(Struct, frozen=True):
    """A time over requests, milliseconds: mean with its interval, and percentiles (null: the closed form has none)."""

    mean: float
    p50: float | None
    p90: float | None
    p99: float | None
    interval: Interval


class ServedSequences(Struct, frozen=True):
    """Sequences of all engines: mean over time, and the most that fit at once."""

    mean: float | None
    limit: int


class KvCacheUse(Struct, frozen=True):
    """Bytes of keys and values on the fullest device: the most that are kept at once, and what it has for them."""

    required_bytes: float
    capacity_bytes: float


class ServingSteps(Struct, frozen=True):
    """Mean time of an engine's step, milliseconds: of decoding sequences alone, and with prompts."""

    decode: float | None
    mixed: float | None


class ServingSettings(Struct, frozen=True):
    """Settings of the stack as used: those of the request, else its defaults; tokens and sequences of an engine."""

    software: str
    max_batched_tokens: int
    max_sequences: int
    memory_share: float
    prefill_wait_steps: float
    prefill_wait_tokens: int | None
    mixes_prefill: bool
    chunks_prefill: bool
    host_version: str


class ServedFigures(Struct, frozen=True):
    """What users of a served model see. Loads that are `saturated` have no times, only the highest rate and its cause.

    TTFT: time to first token, with waiting. TPOT: time per output token after the first. E2E: time of a request.
    """

    ttft_ms: ServedTime | None
    tpot_ms: ServedTime | None
    e2e_ms: ServedTime | None
    output_tokens_per_s: float | None
    output_tokens_per_s_per_gpu: float | None
    requests_per_s: float | None
    sequences: ServedSequences
    kv_cache: KvCacheUse
    step_ms: ServingSteps
    saturated: bool
    saturated_by: Literal["kv_cache", "max_sequences", "prefill", "host"] | None
    highest_rate_per_s: float
    method: Literal["simulation", "closed_form"]
    settings: ServingSettings


class ServingPrediction(Struct, frozen=True):
    """The answer for one GPU type: `latency_ms` is the mean end to end, null where the load is saturated.

    `bound`, `support` and `breakdown` are those of a decode step at the mean load; `memory` is per device.
    """

    gpu: str
    latency_ms: float | None
    interval_ms: Interval | None
    bound: Literal["compute", "memory", "launch", "communication"]
    predictor: AnsweredBy
    support: Literal["measured", "interpolated", "extrapolated"]
    memory: MemoryUse
    breakdown: list[Share]
    warnings: list[str]
    devices: int
    serving: ServedFigures


class ServingResponse(Struct, frozen=True, omit_defaults=True):
    """One entry per GPU in request order; `skipped` are those of "all" that cannot run the model."""

    predictions: list[ServingPrediction]
    skipped: list[Skipped] = []
    id: int | UnsetType = UNSET


SERVING_EXAMPLE: dict[str, Any] = {
    "gpu": "h100-sxm5-80gb",
    "workload": {
        "kind": "serving",
        "name": "llama-3.1-70b",
        "dtype": "fp8",
        "kv_dtype": "fp8",
        "software": "vllm-0.19.0",
        "parallelism": {"tensor": 8, "pipeline": 1, "expert": 1, "attention_data": 1, "replicas": 1, "nodes": 1},
        "input_tokens": 8192,
        "output_tokens": 1024,
        "length_spread": 0.2,
        "load": {"concurrency": 64},
        "prefix_hit": 0.0,
        "max_batched_tokens": None,
        "max_sequences": None,
        "speculative": None,
        "prefill_pool": None,
    },
    "predictor": "auto",
    "coverage": 0.8,
    "detail": False,
}
