"""JSON structs of POST /predict: milliseconds and bytes, names and units of the HTTP contract."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

from app.bands.coverage import COVERAGE
from app.warning_codes import CodedWarning
from app.wire.field_facts import about
from app.wire.kernel_workload import KERNEL_EXAMPLE, GpuRef, KernelWorkload, PowerCap, StrictNames

if TYPE_CHECKING:
    from app.bands.band import Band

MAX_GPUS = 500

GpuId: TypeAlias = Annotated[str, about("Id of the GPU")]
LatencyMs: TypeAlias = Annotated[float, about("Predicted time, milliseconds")]
LimitMs: TypeAlias = Annotated[float, about("Hardware limit, a lower bound of all predictions, milliseconds")]
Coverage: TypeAlias = Annotated[float, about("Probability with which the true figure lies in the interval")]
RequestedPredictor: TypeAlias = Annotated[str, about("Predictor to answer with", min_length=1, max_length=100)]
RequestedCoverage: TypeAlias = Annotated[
    float, about("Share of true times the interval should hold", unit="share", gt=0, lt=1)
]
Save: TypeAlias = Annotated[bool, about("Keep the answer: it gets an `id`, for GET /predictions/{id}")]
Fits: TypeAlias = Annotated[bool, about("Whether the memory suffices")]
Bound: TypeAlias = Annotated[
    Literal["compute", "memory", "launch", "communication"],
    about("Limiting resource: compute, memory, launch or communication"),
]
Support: TypeAlias = Annotated[
    Literal["measured", "interpolated", "extrapolated"],
    about("measured: this was measured; interpolated: within the training range; extrapolated: outside it"),
]
Warnings: TypeAlias = Annotated[list[str], about("Caveats of this answer")]
WarningCodes: TypeAlias = Annotated[
    list[CodedWarning], about("The warnings with their codes, which are stable where texts may change")
]
Notes: TypeAlias = Annotated[list[str], about("Remarks on the whole answer")]
SavedId: TypeAlias = Annotated[
    int | UnsetType, about("Identifier of the saved answer, for GET /predictions/{id}; absent: not saved")
]
DeviceCount: TypeAlias = Annotated[int, about("Devices that take part")]


class BaseRequest(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """One workload on one GPU (`gpu`) or on several (`gpus`: a list, or "all" of the catalogue)."""

    gpu: Annotated[
        GpuRef | None, about("Id, alias or whole specification of a GPU; NAME:3g.40gb is a MIG slice of it")
    ] = None
    gpus: Annotated[
        Annotated[list[GpuRef], Meta(min_length=1, max_length=MAX_GPUS)] | Literal["all"] | None,
        about('Ids, aliases or specifications of GPUs; "all": the whole catalogue'),
    ] = None
    predictor: RequestedPredictor = "auto"
    coverage: RequestedCoverage = COVERAGE
    detail: Annotated[bool, about("Add one row per operator")] = False
    save: Save = False
    strict_names: StrictNames = False
    power_cap_w: PowerCap = None


class PredictRequest(BaseRequest, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A kernel on one GPU (`gpu`) or on several (`gpus`: a list, or "all" of the catalogue)."""

    workload: Annotated[KernelWorkload, about("The kernel")]


# Parts of answers hold no cycles (`gc=False`): to look through 100,000 of them, the garbage collector stops everyone.


class Interval(Struct, frozen=True, gc=False):
    """The interval that holds the true figure with probability `coverage`, in the unit of the field's name."""

    low: Annotated[float, about("Lower end")]
    high: Annotated[float, about("Upper end")]
    coverage: Coverage

    @classmethod
    def of(cls, middle: float, band: Band[float], coverage: float) -> Interval:
        """Return the interval of a band around `middle`."""
        low, high = band.ends(middle, coverage)
        return cls(float(low), float(high), coverage)

    def band(self, middle: float) -> Band[float]:
        """Return the band of this interval around `middle`."""
        from app.bands.band import Band  # noqa: PLC0415 - commands show their help without NumPy

        return Band.of(middle, self.low, self.high, self.coverage)

    def scaled(self, factor: float) -> Interval:
        """Return the interval of the figure times an exact number."""
        return Interval(self.low * factor, self.high * factor, self.coverage)


IntervalMs: TypeAlias = Annotated[Interval, about("Interval of the true time, milliseconds")]


class WidthPart(Struct, frozen=True, gc=False):
    """What an interval is made of, in log space at a coverage of 0.8; squares of all parts add up to the wider side's.

    `operators` are the errors of their predictions; of the other components that of what such answers share.
    """

    component: Annotated[str, about("What answers share: the figure, GPU, model, format, software ...; or operators")]
    level: Annotated[str, about("That of this answer; empty: all have the same")]
    half_width: Annotated[float, about("Half-width that it adds, in natural logarithms")]
    known: Annotated[bool, about("Whether such answers were measured before")]


Width: TypeAlias = Annotated[
    list[WidthPart] | UnsetType, about("What the interval is made of, the widest first, with `detail`")
]


class NarrowedBy(Struct, frozen=True, gc=False):
    """What an interval would be once this is measured and uploaded."""

    measure: Annotated[str, about("What to measure, with the same software and formats")]
    half_width: Annotated[float, about("Half-width of the wider side then, in natural logarithms at a coverage of 0.8")]


Narrowing: TypeAlias = Annotated[
    list[NarrowedBy] | UnsetType, about("What to measure to narrow the interval, the most useful first, with `detail`")
]


class AnsweredBy(Struct, frozen=True, gc=False):
    """The predictor that answered, and its version."""

    name: Annotated[str, about("Name of the predictor")]
    version: Annotated[str, about("Version of the predictor; shipped-...: included with the code")]


Answerer: TypeAlias = Annotated[AnsweredBy, about("The predictor that answered, and its version")]


class MemoryParts(Struct, frozen=True, gc=False):
    """Bytes that a network keeps on the fullest of its devices."""

    weights_bytes: Annotated[float, about("Weights, bytes")]
    gradients_bytes: Annotated[float, about("Gradients, bytes")]
    optimizer_bytes: Annotated[float, about("State of the optimizer, bytes")]
    activations_bytes: Annotated[float, about("Activations, bytes")]
    kv_cache_bytes: Annotated[float, about("Keys and values, bytes")]
    workspace_bytes: Annotated[float, about("Scratch memory of libraries and buffers, bytes")]
    reserve_bytes: Annotated[float, about("Context of the driver and its kernels, bytes")]


class MemoryUse(Struct, frozen=True, gc=False):
    """Bytes that a device must hold (of kernels and operators the distinct ones touched), and bytes that it has."""

    required_bytes: Annotated[float, about("Bytes that it needs")]
    capacity_bytes: Annotated[float, about("Bytes that the GPU has")]
    fits: Fits
    breakdown: Annotated[MemoryParts | UnsetType, about("Memory of a network by part")] = UNSET
    parts: Annotated[dict[str, float] | UnsetType, about("All bytes of a training step, by part")] = UNSET
    interval_bytes: Annotated[Interval | UnsetType, about("Interval of what a network needs, bytes")] = UNSET
    fits_probability: Annotated[float | UnsetType, about("Probability that a network fits, 0 to 1")] = UNSET


Memory: TypeAlias = Annotated[MemoryUse, about("Memory needed, and memory of the GPU")]


class Share(Struct, frozen=True, gc=False):
    """A group of operators and its share of the time."""

    group: Annotated[str, about("Line of the breakdown")]
    latency_ms: LatencyMs
    share: Annotated[float, about("Part of the time, 0 to 1")]
    operators: Annotated[int, about("Operators of the group")]


class RooflinePosition(Struct, frozen=True, gc=False):
    """Position of the operator under the sustained roofline; null where a figure is unknown.

    `compute_share` is the fraction of `flop_per_s` that it attains, `dram_share` that of `dram_bytes_per_s`, counting
    bytes that do not fit the L2. Over 1 if the card was measured to be faster than the physics allows.
    """

    intensity_flop_per_byte: Annotated[float | None, about("Operations per byte of device memory")]
    ridge_flop_per_byte: Annotated[float | None, about("Intensity from which compute is the limit")]
    flop_per_s: Annotated[float | None, about("Sustained rate of this format, operations per second")]
    dram_bytes_per_s: Annotated[float | None, about("Sustained bandwidth of device memory, bytes per second")]
    compute_share: Annotated[float | None, about("Share of the sustained rate that is attained")]
    dram_share: Annotated[float | None, about("Share of the sustained bandwidth that is attained")]


class TileUse(Struct, frozen=True, gc=False):
    """The best candidate tile: its blocks, their waves over the SMs, and the fraction of SM time that is busy."""

    rows: Annotated[int, about("Rows of the tile")]
    columns: Annotated[int, about("Columns of the tile")]
    blocks: Annotated[float, about("Tiles of the result")]
    waves: Annotated[float, about("Blocks divided by concurrently running blocks")]
    wave_efficiency: Annotated[float, about("Busy share of the waves, 0 to 1")]


class PhysicsTerms(Struct, frozen=True, gc=False):
    """Time of each part by the physics model, with its fitted constants; `shortest_ms` is the minimum of any call."""

    overhead_ms: Annotated[float, about("Launch, milliseconds")]
    shortest_ms: Annotated[float, about("Least time of any call, milliseconds")]
    compute_ms: Annotated[float, about("Arithmetic, milliseconds")]
    dram_ms: Annotated[float, about("Device memory, milliseconds")]
    l2_ms: Annotated[float, about("L2, milliseconds")]
    link_ms: Annotated[float, about("Links to other devices, milliseconds")]
    limit_ms: LimitMs


class MemberAnswer(Struct, frozen=True, gc=False):
    """One member of the answer, and what it predicts alone.

    Learned models correct the physics: `log_correction` is the expected logarithm of measured over physics, from this
    `gpu`'s own model, a `sibling`'s, or the one `shared` by all.
    """

    source: Annotated[
        Literal["physics", "own", "sibling", "shared", "measured"],
        about("The physics, a learned model (this GPU's own, a sibling's, one shared by all), or the measurement"),
    ]
    gpu: Annotated[str | None, about("GPU whose measurements it was trained on; null: all")]
    weight: Annotated[float, about("Weight in the sum of corrections")]
    log_correction: Annotated[float, about("Logarithm of the expected ratio of measured time to physics")]
    latency_ms: Annotated[float, about("Prediction of this member alone, milliseconds")]


class NetworkParts(Struct, frozen=True, gc=False):
    """A collective over several nodes, per repetition: the longer of `node_ms` and `adapters_ms`, plus `hops_ms`.

    Never below the hardware limit. `nodes` are racks where a link joins the devices of a rack.
    """

    nodes: Annotated[int, about("Nodes, or racks whose devices a link joins")]
    node_ms: Annotated[float, about("Time within one node, milliseconds; 0: none")]
    adapters_ms: Annotated[float, about("Launch, and transfers through the nodes' network adapters, milliseconds")]
    hops_ms: Annotated[float, about("Waits for messages of other nodes, milliseconds")]
    limit_ms: LimitMs
    bound: Annotated[
        Literal["node", "network", "limit"], about("Limiting term: within a node, the network, or the hardware limit")
    ]


class Explanation(Struct, frozen=True, gc=False):
    """How `auto` arrived at its answer, per repetition.

    The latency is that of member `measured` if the operator was measured; otherwise the physics' times exp(`fading` x
    sum of weight x log_correction), never below the limit. For a collective over several nodes `network` makes up the
    latency, and all else describes the part within one node. A power cap and the
    host change the latency alone. In a network the operator takes `in_network` times this
    latency: its products run on a hot card, and PyTorch has kernels of its own.
    """

    situation: Annotated[str, about("Knowledge of this operator on this GPU")]
    learned_dtype: Annotated[str | None, about("Number format that the corrections were learned in; null: none")]
    sustained_clock_hz: Annotated[float | None, about("Clock under the power limit, Hz")]
    roofline: Annotated[RooflinePosition, about("Position of the operator under the sustained roofline")]
    tile: Annotated[TileUse | None, about("Best tile; null: the operator is not tiled")]
    physics: Annotated[PhysicsTerms, about("Time of each part by the physics model, milliseconds")]
    members: Annotated[list[MemberAnswer], about("Members of the answer, with their own predictions")]
    fading: Annotated[float, about("Fraction of the corrections left at this distance from the training range, 0 to 1")]
    corrects: Annotated[
        Literal["time", "work"], about("Whether corrections apply to the whole time or only to the work")
    ]
    network: Annotated[NetworkParts | None, about("Parts of a collective over several nodes; null otherwise")]
    in_network: Annotated[float, about("How many times as long the operator takes in its network as alone")] = 1.0


class OperatorRow(Struct, frozen=True, omit_defaults=True, gc=False):
    """One operator in detail; `limit_ms` is the hardware limit.

    A kernel has its `name` and `blocks_per_sm`, the number resident at once. A deep-learning operator has its `count`:
    times, FLOPs and bytes are for all repetitions together; only `auto` gives an `explanation`.
    """

    op: Annotated[str, about("The operator's name")]
    latency_ms: LatencyMs
    low_ms: Annotated[float, about("Lower end of the interval, milliseconds")]
    high_ms: Annotated[float, about("Upper end of the interval, milliseconds")]
    limit_ms: LimitMs
    bound: Annotated[str, about("Limiting resource: compute, memory, launch or communication")]
    flops: Annotated[float, about("Floating-point operations; a fused multiply-add counts two")]
    bytes: Annotated[float, about("Bytes read and written")]
    name: Annotated[str | UnsetType, about("Name of the kernel, or of the network's first operator of this kind")] = (
        UNSET
    )
    blocks_per_sm: Annotated[float | UnsetType, about("Blocks of the launch that are resident on an SM at once")] = (
        UNSET
    )
    group: Annotated[str | UnsetType, about("Line of the breakdown")] = UNSET
    dtype: Annotated[str | UnsetType, about("Number format of weights and activations")] = UNSET
    count: Annotated[float | UnsetType, about("Number of runs")] = UNSET
    support: Annotated[
        str | UnsetType,
        about("measured: this was measured; interpolated: within the training range; extrapolated: outside it"),
    ] = UNSET
    predictor: Annotated[str | UnsetType, about("Name of the predictor that answered")] = UNSET
    phase: Annotated[str | UnsetType, about("forward or backward; of networks also update")] = UNSET
    explanation: Annotated[Explanation | UnsetType, about("How `auto` arrived at its answer")] = UNSET


class Phases(Struct, frozen=True):
    """A step by phase, milliseconds; `communication` is the part not hidden by computation."""

    forward: Annotated[float, about("Forward pass, milliseconds")]
    backward: Annotated[float, about("Backward pass, milliseconds")]
    update: Annotated[float, about("Update of the weights, milliseconds")]
    communication: Annotated[float, about("Communication not hidden by computation, milliseconds")]


class Suggestion(Struct, frozen=True):
    """Workload fields to change so that it fits, and the bytes it then needs."""

    change: Annotated[dict[str, Any], about("Fields of the workload to send instead")]
    required_bytes: Annotated[float, about("Bytes that it needs")]


class Goodput(Struct, frozen=True):
    """A run whose devices fail, and that starts again from its last checkpoint (Young; Daly 2006)."""

    share: Annotated[float, about("Part of the time that advances the run, 0 to 1")]
    expected_over_ideal: Annotated[float, about("Expected time of the run over its time without failures, at least 1")]
    mtbf_s: Annotated[float, about("Mean time between failures of all devices together, seconds")]
    checkpoint_interval_s: Annotated[float, about("Time between checkpoints that the figures are of, seconds")]
    best_checkpoint_interval_s: Annotated[float, about("Time between checkpoints of the shortest run, seconds")]
    expected_epoch_ms: Annotated[float | UnsetType, about("Expected time of an epoch, milliseconds")] = UNSET


class ServingFigures(Struct, frozen=True):
    """Figures that a user of a served model sees; `definitions` explains each."""

    ttft_ms: Annotated[float, about("Time to first token, milliseconds")]
    tpot_ms: Annotated[float, about("Time per output token, milliseconds")]
    request_ms: Annotated[float, about("Time of a whole request, milliseconds")]
    tokens_per_s: Annotated[float, about("Output tokens per second, prefill included")]
    decode_tokens_per_s: Annotated[float, about("Output tokens per second while decoding")]
    requests_per_s: Annotated[float, about("Requests per second")]
    definitions: Annotated[dict[str, str], about("Definition of each of these figures")]


class Prediction(Struct, frozen=True, omit_defaults=True):
    """The answer for one GPU; `operators` only with `detail`, the fields from `devices` on only for networks."""

    gpu: GpuId
    latency_ms: LatencyMs
    interval_ms: IntervalMs
    bound: Bound
    predictor: Answerer
    support: Support
    memory: Memory
    breakdown: Annotated[list[Share], about("The time by groups of operators")]
    warnings: Warnings
    warning_codes: WarningCodes
    operators: Annotated[list[OperatorRow] | None, about("A row per operator, with `detail`")] = None
    width: Width = UNSET
    narrowed_by: Narrowing = UNSET
    devices: Annotated[int | UnsetType, about("Devices that take part")] = UNSET
    phases_ms: Annotated[Phases | UnsetType, about("The step by its phases, milliseconds")] = UNSET
    throughput_per_s: Annotated[
        float | UnsetType, about("Sequences or images per second, tokens in decode; of other workloads runs per second")
    ] = UNSET
    epoch_ms: Annotated[float | UnsetType, about("Time of `dataset_size` sequences or images, milliseconds")] = UNSET
    goodput: Annotated[Goodput | UnsetType, about("The run among `failures`")] = UNSET
    largest_batch: Annotated[int | UnsetType, about("Largest batch that fits; 0: none")] = UNSET
    suggestions: Annotated[list[Suggestion] | UnsetType, about("Changes that make it fit")] = UNSET
    serving: Annotated[ServingFigures | UnsetType, about("Figures of serving `output_tokens` per request")] = UNSET


class Skipped(Struct, frozen=True):
    """A GPU of "all" that cannot run the workload, and why."""

    gpu: GpuId
    reason: Annotated[str, about("Why")]


SkippedGpus: TypeAlias = Annotated[list[Skipped], about("GPUs left out: they cannot run the workload, and why")]


class PredictResponse(Struct, frozen=True, omit_defaults=True):
    """One entry per GPU in request order; `skipped` are those of "all" that cannot run the workload."""

    predictions: Annotated[list[Prediction], about("One entry per GPU, in request order")]
    skipped: SkippedGpus = []
    id: SavedId = UNSET


PREDICT_EXAMPLE: dict[str, Any] = {
    "gpu": "nvidia-l4",
    "workload": KERNEL_EXAMPLE,
    "predictor": "auto",
    "coverage": 0.8,
    "detail": False,
}
