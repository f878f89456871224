"""JSON structs of POST /predict: milliseconds and bytes, names and units of the HTTP contract."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from app.bands.band import Band
from app.wire.kernel_workload import KERNEL_EXAMPLE, GpuRef, KernelWorkload

MAX_GPUS = 500


class BaseRequest(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """One workload on one GPU (`gpu`) or on several (`gpus`: a list, or "all" of the catalogue)."""

    gpu: GpuRef | None = None
    gpus: Annotated[list[GpuRef], Meta(min_length=1, max_length=MAX_GPUS)] | Literal["all"] | None = None
    predictor: Annotated[str, Meta(min_length=1, max_length=100)] = "auto"
    coverage: Annotated[float, Meta(gt=0, lt=1, description="Share of true times the interval should hold")] = 0.8
    detail: Annotated[bool, Meta(description="Add one row per operator")] = False
    save: Annotated[bool, Meta(description="Keep the answer: it gets an `id`, for GET /predictions/{id}")] = False


class PredictRequest(BaseRequest, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A kernel on one GPU (`gpu`) or on several (`gpus`: a list, or "all" of the catalogue)."""

    workload: KernelWorkload


# Parts of answers hold no cycles (`gc=False`): to look through 100,000 of them, the garbage collector stops everyone.


class Interval(Struct, frozen=True, gc=False):
    """The interval that holds the true figure with probability `coverage`, in the unit of the field's name."""

    low: float
    high: float
    coverage: float

    @classmethod
    def of(cls, middle: float, band: Band[float], coverage: float) -> Interval:
        """Return the interval of a band around `middle`."""
        low, high = band.ends(middle, coverage)
        return cls(float(low), float(high), coverage)

    def band(self, middle: float) -> Band[float]:
        """Return the band of this interval around `middle`."""
        return Band.of(middle, self.low, self.high, self.coverage)

    def scaled(self, factor: float) -> Interval:
        """Return the interval of the figure times an exact number."""
        return Interval(self.low * factor, self.high * factor, self.coverage)


class AnsweredBy(Struct, frozen=True, gc=False):
    """The predictor that answered, and its version."""

    name: str
    version: str


class MemoryParts(Struct, frozen=True, gc=False):
    """Bytes that a network keeps on the fullest of its devices."""

    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activations_bytes: float
    kv_cache_bytes: float
    workspace_bytes: float
    reserve_bytes: float


class MemoryUse(Struct, frozen=True, gc=False):
    """Bytes that a device must hold, and bytes that it has.

    For kernels and operators the distinct bytes touched; for a network all that stays, plus the most in use at a time.
    """

    required_bytes: float
    capacity_bytes: float
    fits: bool
    breakdown: MemoryParts | UnsetType = UNSET


class Share(Struct, frozen=True, gc=False):
    """A group of operators and its share of the time."""

    group: str
    latency_ms: float
    share: float
    operators: int


class RooflinePosition(Struct, frozen=True, gc=False):
    """Position of the operator under the sustained roofline; null where a figure is unknown.

    `compute_share` is the fraction of `flop_per_s` that it attains, `dram_share` that of `dram_bytes_per_s`, counting
    bytes that do not fit the L2. Over 1 if the card was measured to be faster than the physics allows.
    """

    intensity_flop_per_byte: float | None
    ridge_flop_per_byte: float | None
    flop_per_s: float | None
    dram_bytes_per_s: float | None
    compute_share: float | None
    dram_share: float | None


class TileUse(Struct, frozen=True, gc=False):
    """The best candidate tile: its blocks, their waves over the SMs, and the fraction of SM time that is busy."""

    rows: int
    columns: int
    blocks: float
    waves: float
    wave_efficiency: float


class PhysicsTerms(Struct, frozen=True, gc=False):
    """Time of each part by the physics model, with its fitted constants; `shortest_ms` is the minimum of any call."""

    overhead_ms: float
    shortest_ms: float
    compute_ms: float
    dram_ms: float
    l2_ms: float
    link_ms: float
    limit_ms: float


class MemberAnswer(Struct, frozen=True, gc=False):
    """One member of the answer, and what it predicts alone.

    Learned models correct the physics: `log_correction` is the expected logarithm of measured over physics, from this
    `gpu`'s own model, a `sibling`'s, or the one `shared` by all.
    """

    source: Literal["physics", "own", "sibling", "shared", "measured"]
    gpu: str | None
    weight: float
    log_correction: float
    latency_ms: float


class NetworkParts(Struct, frozen=True, gc=False):
    """A collective over several nodes, per repetition: the longer of `node_ms` and `adapters_ms`, plus `hops_ms`.

    Never below the hardware limit `limit_ms`; `bound` names the term that counts. `node_ms` is the time within a node
    (0 if none), `adapters_ms` a launch and the simultaneous traffic through the nodes' network adapters, `hops_ms` the
    waiting for messages of other nodes. `nodes` are racks where a link joins the devices of a rack.
    """

    nodes: int
    node_ms: float
    adapters_ms: float
    hops_ms: float
    limit_ms: float
    bound: Literal["node", "network", "limit"]


class Explanation(Struct, frozen=True, gc=False):
    """How `auto` arrived at its answer, per repetition.

    The latency is that of member `measured` if the operator was measured; otherwise the physics' times exp(`fading` x
    sum of weight x log_correction), never below the limit. `fading` is the fraction of the corrections left at this
    distance from the training range. `corrects` is whether they apply to the whole time or only to the work, for
    operators launched differently from the measured ones. `learned_dtype` is the number format that the corrections
    were learned in. For a collective over several nodes `network` makes up the latency, and all else describes the part
    within one node. In a network the operator takes `in_network` times this latency: its products run on a hot card,
    and PyTorch has kernels of its own.
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
    in_network: float = 1.0


class OperatorRow(Struct, frozen=True, omit_defaults=True, gc=False):
    """One operator in detail; `limit_ms` is the hardware limit.

    A kernel has its `name` and `blocks_per_sm`, the number resident at once. A deep-learning operator has its `count`:
    times, FLOPs and bytes are for all repetitions together; only `auto` gives an `explanation`.
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
    """A step by phase, milliseconds; `communication` is the part not hidden by computation."""

    forward: float
    backward: float
    update: float
    communication: float


class Suggestion(Struct, frozen=True):
    """Workload fields to change so that it fits, and the bytes it then needs."""

    change: dict[str, Any]
    required_bytes: float


class ServingFigures(Struct, frozen=True):
    """Figures that a user of a served model sees; `definitions` explains each."""

    ttft_ms: float
    tpot_ms: float
    request_ms: float
    tokens_per_s: float
    decode_tokens_per_s: float
    requests_per_s: float
    definitions: dict[str, str]


class Prediction(Struct, frozen=True, omit_defaults=True):
    """The answer for one GPU; `operators` only with `detail`.

    Only for networks: `devices` used, `phases_ms` of the step, `throughput_per_s` in sequences or images (tokens in
    mode decode), `epoch_ms` with a `dataset_size`, `largest_batch` that fits (0: none), `suggestions` to make it fit,
    `serving` with `output_tokens`.
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
    """One entry per GPU in request order; `skipped` are those of "all" that cannot run the workload."""

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
