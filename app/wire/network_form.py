"""JSON structs of whole networks in POST /predict: a model by configuration or name, or a graph, and how it is run."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from app.graphs.run import Attention, DiffusionPart, InputCopy, MemoryFormat, Mode, Optimizer, PipelineSchedule
from app.wire.graph_form import GRAPH_EXAMPLE
from app.wire.kernel_workload import Dtype, Name
from app.wire.prediction_form import BaseRequest

# Beyond these limits the unit is wrong; sums stay far from the limits of float64.
MOST_BATCH, _MOST_TOKENS, _MOST_PIXELS, _MOST_FRAMES, _MOST_DEVICES = 2**24, 2**24, 2**14, 2**14, 2**16
# Whole numbers, also if a client writes them as 4.0.
_WHOLE: dict[str, Any] = {"multiple_of": 1.0, "extra_json_schema": {"type": "integer"}}
Batch: TypeAlias = Annotated[float, Meta(ge=1, le=MOST_BATCH, **_WHOLE)]
Tokens: TypeAlias = Annotated[float, Meta(ge=1, le=_MOST_TOKENS, **_WHOLE)]
Pixels: TypeAlias = Annotated[float, Meta(ge=1, le=_MOST_PIXELS, **_WHOLE)]
Frames: TypeAlias = Annotated[float, Meta(ge=1, le=_MOST_FRAMES, **_WHOLE)]
Devices: TypeAlias = Annotated[float, Meta(ge=1, le=_MOST_DEVICES, **_WHOLE)]
Samples: TypeAlias = Annotated[float, Meta(ge=1, le=1e15, **_WHOLE)]
Extent: TypeAlias = Annotated[float, Meta(ge=1, le=2**31, **_WHOLE)]
# Number formats of whole networks: those of operators, and of weights alone, or scaled by groups of 32 elements.
NetworkDtype: TypeAlias = Literal[
    "fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp8_block", "mxfp8", "int8", "nvfp4", "int4_wo", "w4a16_mxfp4",
    "w4a8_mxfp4", "w4a8_mxfp4_mxfp8",
]  # fmt: skip
Dim: TypeAlias = Annotated[str, Meta(min_length=1, max_length=100)]
KvDtype: TypeAlias = Literal["fp32", "fp16", "bf16", "fp8", "int8", "nvfp4"]


class ParallelismIn(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """How a network is split over data x tensor x pipeline x context devices on `nodes` machines.

    `microbatches` is per step and data-parallel replica. `expert` devices out of data x tensor share the experts.
    `attention_data` of the tensor-parallel devices are replicas of attention, and the rest of them share each.
    `context` devices share each sequence. `virtual_pipeline` is the chunks of layers of a stage, interleaved.
    `sequence` also splits the layers between tensor-parallel ones, and `tensor_overlap` runs its collectives beside
    products. `zero` is the stage of ZeRO.
    """

    data: Devices = 1
    tensor: Devices = 1
    pipeline: Devices = 1
    context: Devices = 1
    virtual_pipeline: Devices = 1
    expert: Devices = 1
    attention_data: Devices = 1
    microbatches: Devices = 1
    nodes: Devices = 1
    sequence: bool = False
    tensor_overlap: bool = False
    zero: Literal[0, 1, 2, 3] = 0
    schedule: PipelineSchedule = "1f1b"
    network_bytes_per_s: Annotated[
        float, Meta(ge=1e6, le=1e13, description="what a device can send to other nodes, one way")
    ] = 25e9


class RunOptions(Struct, kw_only=True, frozen=True):
    """How a network is run: the fields that models and graphs share.

    `batch` is global, over all data-parallel devices and accumulated steps. `optimizer` "none" leaves the update out.
    `memory_format` is PyTorch's, of images.
    `software` decides whether the host launches each operator: PyTorch does, serving stacks replay CUDA graphs.
    """

    batch: Batch = 1
    fused: Annotated[bool, Meta(description="Element-wise operators run with those that feed them")] = False
    memory_format: MemoryFormat = "channels_first"
    optimizer: Optimizer = "adam"
    recompute: Annotated[
        bool | Literal["full", "selective"],
        Meta(description="Backward computes activations again: of whole layers (true, full) or of attention's scores"),
    ] = False
    gradient_accumulation: Annotated[Devices, Meta(description="Steps whose gradients add up to one update")] = 1
    parallelism: ParallelismIn = ParallelismIn()
    dataset_size: Annotated[Samples | None, Meta(description="Sequences or images of an epoch")] = None
    software: Name | None = None


class LoraIn(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Low-rank adapters beside the projections of attention (LoRA)."""

    rank: Annotated[float, Meta(ge=1, le=65536, **_WHOLE)]


class TrainableIn(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """What is trained where not all weights are: the model's own are then frozen."""

    lora: LoraIn


class ModelWorkload(RunOptions, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """One step of a network: `config` is a config.json of Hugging Face or Diffusers, or `name` a built-in network.

    `sequence` is tokens per sequence: all tokens in inference, training and prefill; in decode the keys that the new
    token attends to, itself included. `image_size` is pixels per side. A step of a diffusion transformer is a forward
    pass: `batch` samples of `image_size` by `image_width` pixels and `frames` frames, `sequence` tokens of text; or,
    as `part`, its text encoders on as many prompts, or its autoencoder on as many latent images. With
    `output_tokens` the answer adds figures of serving requests of `sequence` tokens each. `attention` defaults to
    "flash" in prefill, decode, training in 16 bits and fewer and diffusion transformers, else to "eager". `dtype` is by
    default that of the configuration's `quantization_config`, part by part, and "fp32" without one or in training.
    `trainable` is all weights, or adapters beside frozen ones. `kv_dtype` is the number format of the KV cache, by
    default that of attention. `input_copy` adds the copy of the input from pageable or pinned memory of the host, where
    the step waits for it.
    """

    kind: Literal["model"]
    config: dict[str, Any] | None = None
    name: Name | None = None
    mode: Mode = "inference"
    sequence: Tokens | None = None
    image_size: Pixels | None = None
    image_width: Pixels | None = None
    frames: Frames | None = None
    part: DiffusionPart | None = None
    dtype: NetworkDtype | None = None
    attention: Attention | None = None
    kv_dtype: KvDtype | None = None
    output_tokens: Tokens | None = None
    trainable: Literal["all"] | TrainableIn = "all"
    input_copy: InputCopy = "none"


class GraphWorkload(RunOptions, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """One step of a network given as a graph: `graph` in the project's JSON form, or the `graph_id` of POST /graphs.

    `dims` gives sizes for the graph's named dimensions; the usual names are bound by `batch` and `sequence`. `dtype`
    overrides the graph's own.
    """

    kind: Literal["graph"]
    graph: dict[str, Any] | None = None
    graph_id: Name | None = None
    dims: dict[Dim, Extent] = {}
    mode: Literal["inference", "training"] = "inference"
    sequence: Tokens | None = None
    dtype: Dtype | None = None


class ModelRequest(BaseRequest, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A network on one GPU (`gpu`) or on several (`gpus`: a list, or "all" of the catalogue)."""

    workload: ModelWorkload


class GraphRequest(BaseRequest, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A graph on one GPU (`gpu`) or on several (`gpus`: a list, or "all" of the catalogue)."""

    workload: GraphWorkload


NetworkRequest: TypeAlias = ModelRequest | GraphRequest
NetworkWorkload: TypeAlias = ModelWorkload | GraphWorkload

GPT2_LARGE: dict[str, Any] = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_embd": 1280,
    "n_head": 20,
    "n_layer": 36,
    "n_positions": 1024,
    "vocab_size": 50257,
}
MODEL_EXAMPLE: dict[str, Any] = {
    "gpu": "nvidia-l4",
    "workload": {
        "kind": "model",
        "config": GPT2_LARGE,
        "mode": "inference",
        "batch": 4,
        "sequence": 1024,
        "dtype": "fp32",
        "attention": "eager",
        "fused": False,
        "optimizer": "adam",
        "parallelism": {"data": 1, "tensor": 1, "pipeline": 1, "microbatches": 1, "nodes": 1},
    },
    "predictor": "auto",
    "coverage": 0.8,
    "detail": False,
}
GRAPH_REQUEST_EXAMPLE: dict[str, Any] = {
    "gpu": "nvidia-l4",
    "workload": {"kind": "graph", "graph": GRAPH_EXAMPLE, "batch": 32, "mode": "training", "optimizer": "adam"},
    "predictor": "auto",
    "coverage": 0.8,
    "detail": False,
}
