"""POST /predict as the wire has it: milliseconds and bytes, names and units of the HTTP contract."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from app.wire.kernel_workload import KERNEL_EXAMPLE, GpuRef, KernelWorkload

MAX_GPUS = 500


class Asking(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """One workload on one GPU (`gpu`) or on several (`gpus`: a list, or "all" of the catalogue)."""

    gpu: GpuRef | None = None
    gpus: Annotated[list[GpuRef], Meta(min_length=1, max_length=MAX_GPUS)] | Literal["all"] | None = None
    predictor: Annotated[str, Meta(min_length=1, max_length=100)] = "auto"
    coverage: Annotated[float, Meta(gt=0, lt=1, description="Share of true times the interval should hold")] = 0.8
    detail: Annotated[bool, Meta(description="Add one row per operator")] = False
    save: Annotated[bool, Meta(description="Keep the answer: it gets an `id`, for GET /predictions/{id}")] = False


class PredictRequest(Asking, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A kernel on one GPU (`gpu`) or on several (`gpus`: a list, or "all" of the catalogue)."""

    workload: KernelWorkload


class Interval(Struct, frozen=True):
    """Where the true figure lies with the probability `coverage`, in the unit that the field's name says."""

    low: float
    high: float
    coverage: float


class AnsweredBy(Struct, frozen=True):
    """The predictor that answered, and its version."""

    name: str
    version: str


class MemoryParts(Struct, frozen=True):
    """What a network keeps on the fullest of its devices, bytes."""

    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activations_bytes: float
    kv_cache_bytes: float
    workspace_bytes: float
    reserve_bytes: float


class MemoryUse(Struct, frozen=True):
    """Bytes that a device must hold beside those that it has.

    Of kernels and operators the distinct bytes touched; of a network all that stays, and the most at work at a time.
    """

    required_bytes: float
    capacity_bytes: float
    fits: bool
    breakdown: MemoryParts | UnsetType = UNSET


class Share(Struct, frozen=True):
    """A group of operators and its part of the time."""

    group: str
    latency_ms: float
    share: float
    operators: int


class RooflinePosition(Struct, frozen=True):
    """Where the operator stands under the sustained roofline; null where a figure is not known.

    `compute_share` is the part of `flop_per_s` that it attains, `dram_share` of `dram_bytes_per_s`, by the bytes that
    cannot stay in the L2; over 1 where what was measured of the card is faster than physics has it.
    """

    intensity_flop_per_byte: float | None
    ridge_flop_per_byte: float | None
    flop_per_s: float | None
    dram_bytes_per_s: float | None
    compute_share: float | None
    dram_share: float | None


class TileUse(Struct, frozen=True):
    """The candidate tile that suits best: its blocks, their waves over the SMs, and the part of these that is busy."""

    rows: int
    columns: int
    blocks: float
    waves: float
    wave_efficiency: float


class PhysicsTerms(Struct, frozen=True):
    """Time of each part by physics, under the constants fitted to measurements; `shortest` is the least of any call."""

    overhead_ms: float
    shortest_ms: float
    compute_ms: float
    dram_ms: float
    l2_ms: float
    link_ms: float
    limit_ms: float


class MemberAnswer(Struct, frozen=True):
    """A part of the answer, and what it says alone.

    The learned models correct the physics: `log_correction` is the logarithm of measured over physics that one
    expects, of this `gpu`, of a `sibling`, or `shared` by all.
    """

    source: Literal["physics", "own", "sibling", "shared", "measured"]
    gpu: str | None
    weight: float
    log_correction: float
    latency_ms: float


class NetworkParts(Struct, frozen=True):
    """A collective over several nodes, of one repetition: the longer of `node_ms` and `adapters_ms`, and `hops_ms`.

    Never under the hardware limit `limit_ms`; `bound` says which counts. `node_ms` is what a node takes for its part, 0
    where it has none, `adapters_ms` a launch and what goes through the nodes' network adapters at the same time,
    `hops_ms` what messages wait for at other nodes. `nodes` are racks where a link joins the devices of one.
    """

    nodes: int
    node_ms: float
    adapters_ms: float
    hops_ms: float
    limit_ms: float
    bound: Literal["node", "network", "limit"]


class Explanation(Struct, frozen=True):
    """Why `auto` says so, of one repetition.

    The latency is that of `measured` where the operator was; else the physics' times exp(`fading` x sum of weight x
    log_correction), never under the limit. `fading` is what is left of the corrections at this distance from the shapes
    learned from; `corrects` says whether they go for the whole time or only for its work, where the operator is
    launched in another way than those measured. `learned_dtype` is the number format that they were learned in.
    Of a collective over several nodes `network` makes up the latency, and all else is of the part that one node runs.
    """

    situation: str
    learned_dtype: str | None
    sustained_clock_hz: float | None
    roofline: RooflinePosition
    tile: TileUse | None
    physics: PhysicsTerms
    members: list[MemberAnswer]
    fading: float
    corrects: Literal["time", "work"]
    network: NetworkParts | None


class OperatorRow(Struct, frozen=True, omit_defaults=True):
    """One operator in detail; `limit_ms` is the hardware limit.

    A kernel has its `name` and `blocks_per_sm`, how many are resident at once. A deep-learning operator has its
    `count`: its times, FLOPs and bytes are those of all repetitions together; `explanation` is of `auto` only.
    """

    op: str
    latency_ms: float
    low_ms: float
    high_ms: float
    limit_ms: float
    bound: str
    flops: float
    bytes: float
    name: str | UnsetType = UNSET
    blocks_per_sm: float | UnsetType = UNSET
    group: str | UnsetType = UNSET
    dtype: str | UnsetType = UNSET
    count: float | UnsetType = UNSET
    support: str | UnsetType = UNSET
    predictor: str | UnsetType = UNSET
    phase: str | UnsetType = UNSET
    explanation: Explanation | UnsetType = UNSET


class Phases(Struct, frozen=True):
    """A step by its phases, milliseconds; `communication` is what no computation hides."""

    forward: float
    backward: float
    update: float
    communication: float


class Suggestion(Struct, frozen=True):
    """Fields of the workload to send instead, with which it fits, and the bytes that it then takes."""

    change: dict[str, Any]
    required_bytes: float


class ServingFigures(Struct, frozen=True):
    """What a user of a served model sees; `definitions` says what each figure means."""

    ttft_ms: float
    tpot_ms: float
    request_ms: float
    tokens_per_s: float
    decode_tokens_per_s: float
    requests_per_s: float
    definitions: dict[str, str]


class Prediction(Struct, frozen=True, omit_defaults=True):
    """The answer for one GPU; `operators` only with `detail`.

    Of networks alone: `devices` taken, `phases_ms` of the step, `throughput_per_s` in sequences or images (tokens in
    mode decode), `epoch_ms` with a `dataset_size`, `largest_batch` that fits (0: none does), `suggestions` of what
    would make it fit, `serving` with `output_tokens`.
    """

    gpu: str
    latency_ms: float
    interval_ms: Interval
    bound: Literal["compute", "memory", "launch", "communication"]
    predictor: AnsweredBy
    support: Literal["measured", "interpolated", "extrapolated"]
    memory: MemoryUse
    breakdown: list[Share]
    warnings: list[str]
    operators: list[OperatorRow] | None = None
    devices: int | UnsetType = UNSET
    phases_ms: Phases | UnsetType = UNSET
    throughput_per_s: float | UnsetType = UNSET
    epoch_ms: float | UnsetType = UNSET
    largest_batch: int | UnsetType = UNSET
    suggestions: list[Suggestion] | UnsetType = UNSET
    serving: ServingFigures | UnsetType = UNSET


class Skipped(Struct, frozen=True):
    """A GPU of "all" that cannot run the workload, and why."""

    gpu: str
    reason: str


class PredictResponse(Struct, frozen=True, omit_defaults=True):
    """One entry per GPU in the order asked; `skipped` names those of "all" that cannot run the workload."""

    predictions: list[Prediction]
    skipped: list[Skipped] = []
    id: int | UnsetType = UNSET


PREDICT_EXAMPLE: dict[str, Any] = {
    "gpu": "nvidia-l4",
    "workload": KERNEL_EXAMPLE,
    "predictor": "auto",
    "coverage": 0.8,
    "detail": False,
}
