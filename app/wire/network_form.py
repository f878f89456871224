"""JSON structs of whole networks: a model by configuration or name, or a graph, how it is run, and POST /partition."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from app.bands.coverage import COVERAGE
from app.networks.run import (
    AdaptedModule,
    Attention,
    DiffusionPart,
    InputCopy,
    MemoryFormat,
    Mode,
    Optimizer,
    PipelineSchedule,
    Recompute,
    RecomputedModule,
)
from app.stacks.facts import Host
from app.wire.examples import EXAMPLES
from app.wire.field_facts import WHOLE, about
from app.wire.kernel_workload import DeviceLink, GpuRef, Name, NetworkRate
from app.wire.prediction_form import (
    Answerer,
    BaseRequest,
    Fits,
    GpuId,
    Interval,
    IntervalMs,
    Memory,
    RequestedCoverage,
    RequestedPredictor,
    SkippedGpus,
    WarningCodes,
    Warnings,
)

# Beyond these limits the unit is wrong; sums stay far from the limits of float64.
MOST_BATCH, _MOST_TOKENS, _MOST_PIXELS, _MOST_FRAMES, _MOST_DEVICES = 2**24, 2**24, 2**14, 2**14, 2**16
Batch: TypeAlias = Annotated[float, Meta(ge=1, le=MOST_BATCH, **WHOLE)]
Tokens: TypeAlias = Annotated[float, Meta(ge=1, le=_MOST_TOKENS, extra={"unit": "tokens"}, **WHOLE)]
Pixels: TypeAlias = Annotated[float, Meta(ge=1, le=_MOST_PIXELS, extra={"unit": "pixels"}, **WHOLE)]
Frames: TypeAlias = Annotated[float, Meta(ge=1, le=_MOST_FRAMES, **WHOLE)]
Devices: TypeAlias = Annotated[float, Meta(ge=1, le=_MOST_DEVICES, **WHOLE)]
Samples: TypeAlias = Annotated[float, Meta(ge=1, le=1e15, **WHOLE)]
# Number formats of whole networks: those of operators, and of weights alone, or scaled by groups of 32 elements.
NetworkDtype: TypeAlias = Literal[
    "fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp8_block", "mxfp8", "int8", "nvfp4", "int4_wo", "w4a16_mxfp4",
    "w4a8_mxfp4", "w4a8_mxfp4_mxfp8", "int8_wo", "fp8_wo", "mxfp4", "mxfp6", "q2_k", "q3_k_s", "q3_k_m", "q3_k_l",
    "q4_0", "q4_k_s", "q4_k_m", "q5_0", "q5_k_s", "q5_k_m", "q6_k", "q8_0", "iq4_xs", "iq4_nl",
]  # fmt: skip
KvDtype: TypeAlias = Literal["fp32", "fp16", "bf16", "fp8", "int8", "nvfp4"]

Config: TypeAlias = Annotated[
    dict[str, Any] | None, about("A config.json of Hugging Face, or of a transformer of Diffusers")
]
SequenceLength: TypeAlias = Annotated[
    Tokens | None,
    about("Tokens per sequence; in decode the context length, including the new token", title="Context length"),
]
CacheDtype: TypeAlias = Annotated[
    KvDtype | None, about("Number format of the KV cache; absent: that of attention", title="KV cache")
]


class ParallelismIn(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """How a network is split over data x tensor x pipeline x context devices on `nodes` machines."""

    data: Annotated[Devices, about("Replicas that share the batch", title="Data-parallel devices")] = 1
    tensor: Annotated[Devices, about("Devices that share each layer", title="Tensor-parallel devices")] = 1
    pipeline: Annotated[Devices, about("Stages of whole layers", title="Pipeline stages")] = 1
    context: Annotated[
        Devices,
        about(
            "Devices that share each sequence and exchange its keys and values", title="Devices that share a sequence"
        ),
    ] = 1
    virtual_pipeline: Annotated[
        Devices,
        about(
            "Chunks of layers that a pipeline stage runs in turn (interleaved 1F1B)", title="Chunks of layers per stage"
        ),
    ] = 1
    expert: Annotated[
        Devices,
        about(
            "Devices, out of data x tensor, that share the experts; a multiple of tensor deals whole ones",
            title="Expert-parallel devices",
        ),
    ] = 1
    attention_data: Annotated[
        Devices, about("Replicas of attention among the tensor-parallel devices; the rest of them share each")
    ] = 1
    microbatches: Annotated[Devices, about("Microbatches of a step, per replica")] = 1
    nodes: Annotated[Devices, about("Machines of the devices", title="Machines")] = 1
    sequence: Annotated[bool, about("Also split the layers between tensor-parallel ones")] = False
    tensor_overlap: Annotated[
        bool, about("Collectives of tensor parallelism run beside the products they feed, a shard at a time")
    ] = False
    zero: Annotated[
        Literal[0, 1, 2, 3] | None, about("Stage of ZeRO, 0 to 3; absent: the stack's usual one", title="ZeRO stage")
    ] = None
    schedule: Annotated[PipelineSchedule, about("Order of a pipeline's microbatches")] = "1f1b"
    network_bytes_per_s: NetworkRate = 25e9
    link: DeviceLink = None


class FailuresIn(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """How often devices fail, and what a checkpoint takes."""

    mtbf_hours_per_device: Annotated[
        float, about("Mean time between failures of one device, hours", unit="h", gt=0, le=1e9)
    ]
    checkpoint_s: Annotated[
        float, about("Time that the run waits for a checkpoint, and that reading it takes, seconds", gt=0, le=1e6)
    ]
    checkpoint_interval_s: Annotated[
        Annotated[float, Meta(gt=0, le=1e9)] | None, about("Between checkpoints, seconds; absent: the best one")
    ] = None


class RunOptions(Struct, kw_only=True, frozen=True):
    """How a network is run: the fields that models and graphs share."""

    batch: Annotated[
        Batch, about("Sequences or images of a step, over all data-parallel devices and accumulated steps")
    ] = 1
    fused: Annotated[
        bool, about("Element-wise operators run with those that feed them", title="Element-wise operators are fused")
    ] = False
    compiled: Annotated[bool, about("Whether a graph compiler runs (torch.compile), like `fused`")] = False
    host: Annotated[
        Host | None,
        about("Host that launches the operators of eager software, by how quick it is; absent: any", title="Host"),
    ] = None
    memory_format: Annotated[
        MemoryFormat,
        about(
            "Layout of images in memory: channel after channel (NCHW, PyTorch's default), or channels last",
            title="Layout of images",
        ),
    ] = "channels_first"
    optimizer: Annotated[Optimizer, about("Optimizer of a training step; none omits the update")] = "adam"
    recompute: Annotated[
        bool | Recompute | None,
        about(
            "Backward computes activations again: of whole layers (true, full), of all but attention and every second"
            " product (selective_op, and selective in PyTorch), of attention's scores (selective in Megatron); absent:"
            " as the stack usually does",
            title="Activations are recomputed",
        ),
    ] = None
    gradient_accumulation: Annotated[
        Devices, about("Steps whose gradients add up to one update", title="Accumulated steps")
    ] = 1
    parallelism: Annotated[ParallelismIn, about("How the network is split over devices")] = ParallelismIn()
    dataset_size: Annotated[Samples | None, about("Sequences or images of an epoch", title="Samples in an epoch")] = (
        None
    )
    failures: Annotated[FailuresIn | None, about("Failures of devices: training answers `goodput` by them")] = None
    software: Annotated[
        Name | None,
        about(
            "Software stack (pytorch-2.1, vllm-0.24 ...): PyTorch's host launches each operator, others replay graphs",
            title="Software stack",
        ),
    ] = None


class LoraIn(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Low-rank adapters beside linear layers (LoRA)."""

    rank: Annotated[float, about("Rank of the adapters: their inner features", ge=1, le=65536, **WHOLE)]
    modules: Annotated[
        list[AdaptedModule] | None, about("Linear layers with adapters; absent: the projections of attention")
    ] = None


class TrainableIn(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """What is trained where not all weights are: the model's own are then frozen."""

    lora: Annotated[LoraIn, about("Low-rank adapters beside linear layers")]


class ModelWorkload(RunOptions, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """One step of a network: `config` is a config.json of Hugging Face or Diffusers, or `name` a built-in network.

    A step of a diffusion transformer is a forward pass: `batch` samples of `image_size` by `image_width` pixels and
    `frames` frames, `sequence` tokens of text; or, as `part`, its text encoders on as many prompts, or its autoencoder
    on as many latent images.
    """

    kind: Annotated[Literal["model"], about("Kind of the workload")]
    config: Config = None
    name: Annotated[Name | None, about("A built-in transformer or ConvNet, in place of `config`", title="Network")] = (
        None
    )
    mode: Annotated[
        Mode, about("inference, training (forward, backward, update), prefill or decode (one new token per sequence)")
    ] = "inference"
    sequence: SequenceLength = None
    image_size: Annotated[
        Pixels | None, about("Pixels of one side; of diffusion transformers the height", title="Image side, pixels")
    ] = None
    image_width: Annotated[
        Pixels | None,
        about("Pixels of a row of a diffusion transformer's image; absent: image_size", title="Frame's width, pixels"),
    ] = None
    frames: Annotated[Frames | None, about("Frames of a diffusion transformer's video")] = None
    part: Annotated[
        DiffusionPart | None,
        about(
            "Part of a diffusion model that the step is: its denoiser (absent), text encoders or autoencoder",
            title="Part of a diffusion model",
        ),
    ] = None
    dtype: Annotated[
        NetworkDtype | None,
        about(
            "Number format of weights and activations; absent: as published (`quantization_config`), or bf16",
            title="Number format",
        ),
    ] = None
    attention: Annotated[
        Attention | None,
        about(
            "eager: separate products and softmax; fused, flash: one kernel; absent: flash in prefill, decode, training"
            " in 16 bits and fewer and diffusion transformers, else eager"
        ),
    ] = None
    kv_dtype: CacheDtype = None
    output_tokens: Annotated[
        Tokens | None, about("Output tokens per sequence: adds figures of serving requests of `sequence` tokens each")
    ] = None
    trainable: Annotated[
        Literal["all"] | TrainableIn,
        about("What training changes: all weights, or low-rank adapters beside frozen ones"),
    ] = "all"
    lora: Annotated[LoraIn | None, about("Low-rank adapters that alone are trained, as in `trainable`")] = None
    recompute_modules: Annotated[
        list[RecomputedModule] | None,
        about("Modules whose activations backward computes again, by Megatron's names: what selective recomputes"),
    ] = None
    quantization: Annotated[
        Literal["nf4"] | None, about("Format of the frozen weights beside `lora`: each pass widens them (QLoRA)")
    ] = None
    input_copy: Annotated[
        InputCopy,
        about(
            "Host memory from which the step first copies its input to the devices, and waits for it",
            title="Input copied from host memory",
        ),
    ] = "none"


class ModelRequest(BaseRequest, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A network on one GPU (`gpu`) or on several (`gpus`: a list, or "all" of the catalogue)."""

    workload: Annotated[ModelWorkload, about("A step of the network")]


MODEL_EXAMPLE: dict[str, Any] = EXAMPLES["model"]
GPT2_LARGE: dict[str, Any] = MODEL_EXAMPLE["workload"]["config"]


MOST_STAGES = 16


class PartitionRequest(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A network (a workload of kind `model` or `graph`) and the GPUs in pipeline order."""

    gpus: Annotated[
        list[GpuRef],
        about("Ids, aliases or specifications of GPUs, in pipeline order", min_length=2, max_length=MOST_STAGES),
    ]
    workload: Annotated[dict[str, Any], about("What runs: a model or a graph")]
    predictor: RequestedPredictor = "auto"
    coverage: RequestedCoverage = COVERAGE
    link_bandwidth_bytes_per_s: Annotated[
        Annotated[float, Meta(ge=1e3, le=1e15)] | None,
        about("Between neighbours; default: the slower link of the two GPUs"),
    ] = None
    link_latency_ms: Annotated[float, about("Fixed latency of one transfer, milliseconds", unit="ms", ge=0, le=1e6)] = (
        0.02
    )


class Stage(Struct, frozen=True):
    """What one GPU runs of the network; its time includes that of receiving the previous stage's output."""

    gpu: GpuId
    first_unit: Annotated[int, about("First unit of the stage, from 0")]
    last_unit: Annotated[int, about("Last unit of the stage")]
    first: Annotated[str, about("Name of the first unit")]
    last: Annotated[str, about("Name of the last unit")]
    latency_ms: Annotated[float, about("Time of the stage, its transfer included, milliseconds")]
    interval_ms: IntervalMs
    transfer_ms: Annotated[float, about("Transfer time of the stage's input, milliseconds")]
    sent_bytes: Annotated[float, about("Bytes sent to the next stage")]
    memory: Memory


class Cut(Struct, frozen=True):
    """One partition: consecutive requests finish every `bottleneck_ms`, a single one takes `latency_ms`."""

    stages: Annotated[list[Stage], about("What each GPU runs, in order")]
    bottleneck_ms: Annotated[
        float, about("Time of the slowest stage, the interval between consecutive requests, milliseconds")
    ]
    bottleneck_interval_ms: Annotated[Interval, about("Interval of the true time of the slowest stage, milliseconds")]
    latency_ms: Annotated[float, about("Time of a single request through all stages, milliseconds")]
    throughput_per_s: Annotated[float, about("Sequences or images per second, tokens in decode")]
    fits: Fits
    units: Annotated[int, about("Layers and operators between which the network can be partitioned")]
    predictor: Answerer
    warnings: Warnings
    warning_codes: WarningCodes


class PartitionResponse(Struct, frozen=True):
    """The partition with the fastest slowest stage, and the time on each GPU alone (null where it does not fit)."""

    partition: Annotated[Cut, about("The partition with the fastest slowest stage")]
    alone_ms: Annotated[
        list[float | None], about("Whole network on each GPU alone, milliseconds; null where it does not fit")
    ]
    skipped: SkippedGpus = []


PARTITION_EXAMPLE: dict[str, Any] = {"workload": MODEL_EXAMPLE["workload"], **EXAMPLES["partition"]}
