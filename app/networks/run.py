"""Settings of a run: mode, batch, sequence, number formats, parallelism, optimiser."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NoReturn

from app.errors import BadInput, FieldError
from app.stacks.facts import NO_RULES, LayerRules, Link
from app.stacks.release import Release, plain_release, release_of

MODES = ("inference", "training", "prefill", "decode")
Mode = Literal["inference", "training", "prefill", "decode"]
Attention = Literal["eager", "fused", "flash"]
Optimizer = Literal["none", "sgd", "adam", "adamw"]
PipelineSchedule = Literal["gpipe", "1f1b"]
InputCopy = Literal["none", "pageable", "pinned"]
MemoryFormat = Literal["channels_first", "channels_last"]
Recompute = Literal["none", "selective", "selective_op", "full"]
RecomputedModule = Literal["core_attn", "layernorm", "moe_act", "mla_up_proj", "mlp", "moe", "shared_experts"]
AdaptedModule = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
DiffusionPart = Literal["denoiser", "text_encoders", "autoencoder"]
# What is recomputed where it is not modules: whole blocks, all operators but some, or nothing, as what they save waits
# in host memory (Megatron-LM's cpu_offloading: without a pipeline, and where the host is near).
FULL, OPERATORS, OFFLOAD = "full", "selective_op", "offload"
# The field of a configuration of Diffusers that selects its importer.
CLASS_NAME = "_class_name"


@dataclass(frozen=True, slots=True)
class Formats:
    """Number formats of weights and products by kind of part, as published (`quantization_config`); "": 16 bits.

    linear      linear layers of dense feed-forward parts, and what no other field names
    shared      shared experts
    attention   projections of attention
    recurrence  projections of linear attention
    experts     routed experts
    head        logits
    kv_cache    keys and values
    """

    linear: str = ""
    shared: str = ""
    attention: str = ""
    recurrence: str = ""
    experts: str = ""
    head: str = ""
    kv_cache: str = ""


def is_diffusion(config: object) -> bool:
    """Return whether a configuration is one of Diffusers."""
    return isinstance(config, Mapping) and CLASS_NAME in config


def has_formats(config: Mapping[str, Any]) -> bool:
    """Return whether a configuration says how the model is quantised."""
    text = config.get("text_config")
    parts = (config, text) if isinstance(text, Mapping) else (config,)
    return any(part.get(name) is not None for part in parts for name in ("quantization_config", "quantization"))


@dataclass(frozen=True, slots=True)
class Parallelism:
    """Degrees of parallelism; devices = data x tensor x pipeline x context (experts are spread over data x tensor).

    context              devices that share each sequence, and exchange its keys and values
    attention            data-parallel replicas of attention that share the experts of all
    virtual_pipeline     chunks of layers that a pipeline stage runs in turn (interleaved 1F1B)
    tensor_overlap       gathers and scatters of sequence-split tensors run beside their products, a shard at a time
    microbatches         microbatches of a step per data-parallel replica
    zero                 ZeRO stage (0: none)
    network_bytes_per_s  bandwidth of a device to other nodes, one way (default: 200 Gb/s, a NIC per device)
    link                 link of a machine's devices, if not the best that they have
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    attention: int = 1
    virtual_pipeline: int = 1
    expert: int = 1
    microbatches: int = 1
    nodes: int = 1
    sequence: bool = False
    tensor_overlap: bool = False
    zero: int = 0
    schedule: PipelineSchedule = "1f1b"
    network_bytes_per_s: float = 25e9
    link: Link | None = None

    @property
    def devices(self) -> int:
        """Number of devices."""
        return self.data * self.tensor * self.pipeline * self.context

    @property
    def expert_replicas(self) -> int:
        """Data-parallel replicas among which experts are dealt, or split where they are dealt among fewer.

        Each device of whole tensor-parallel groups holds experts of its own (Megatron-Bridge's recipes:
        expert_tensor_parallel_size is 1).
        """
        groups = self.expert // self.tensor if self.expert % self.tensor == 0 else min(self.expert, self.data)
        return max(groups, self.attention)

    @property
    def expert_copies(self) -> int:
        """Devices with the same experts, which exchange their gradients."""
        return self.data * self.context // self.expert_replicas

    @property
    def replicas(self) -> int:
        """Devices with the same weights, which exchange gradients: data-parallel ones, and those of a sequence."""
        return self.data * self.context


@dataclass(frozen=True, slots=True)
class Run:
    """One step of a network.

    batch         sequences or images per step, over all data-parallel devices
    sequence      tokens per sequence; in decode the context length: keys seen by the new token, itself included
    verified      tokens of a sequence that a decode step computes: the last one, and drafted ones after it
    cached        the part of `sequence` whose keys and values are there already: a prefix, or earlier chunks of a
                  prompt; prefill computes the rest
    of_images     True for networks that take images, not tokens
    image_size    pixels per side, for networks that take images
    image_width, frames  of diffusion transformers: pixels of a row, if other than `image_size`, and frames of a video
    part          of a diffusion model's pipeline, the one that runs; None: another network
    memory_format layout of images (app.networks.convolutions)
    input_copy    host memory from which the step copies its input to the devices first; "none": it is there already
    accumulation  steps whose gradients are accumulated before an update
    release       what the release of its software does in this mode
    assumed       whether nobody asked for its formats: a GPU without them runs others (app.steps.run_formats.as_run)
    kv_dtype      number format of the KV cache; None: that of attention
    formats       formats by kind of part, in place of `dtype`, which is then that of everything else; None: `dtype`
    adapter_rank  rank of low-rank adapters beside linear layers, which alone are trained; 0: none
    adapted       linear layers that have them; empty: the projections of attention
    loss          True if training includes the loss over the vocabulary
    pooled        True if prompts are embedded or ranked, not answered: models that generate no tokens are served so
    microscaled   True if 8-bit formats have a scale per 32 elements (MXFP8) in place of one per tensor
    emptied       True if the step starts with an empty allocator cache, as the first one does (app.steps.corrections)
    recompute     what backward recomputes instead of saving it: each block's activations ("full"), those of all
                  operators but attention and every second product ("selective_op"), or modules by Megatron's names
    recompute_layers  share of the layers of which it does
    recompute_or  where nobody said what is recomputed, both of what else is, the least first, where memory is short
    """

    mode: Mode = "inference"
    batch: int = 1
    sequence: int = 1
    verified: int = 1
    cached: int = 0
    of_images: bool = False
    image_size: int = 224
    image_width: int = 0
    frames: int = 1
    part: DiffusionPart | None = None
    memory_format: MemoryFormat = "channels_first"
    input_copy: InputCopy = "none"
    dtype: str = "fp32"
    assumed: bool = field(default=False, compare=False)
    attention: Attention = "eager"
    fused: bool = False
    optimizer: Optimizer = "adam"
    accumulation: int = 1
    emptied: bool = False
    recompute: tuple[str, ...] = ()
    recompute_layers: float = 1.0
    recompute_or: tuple[tuple[tuple[str, ...], float], ...] = field(default=(), compare=False)
    release: Release = field(default_factory=plain_release)
    kv_dtype: str | None = None
    formats: Formats | None = None
    pooled: bool = False
    microscaled: bool = False
    adapter_rank: int = 0
    adapted: tuple[str, ...] = ()
    loss: bool = False
    parallelism: Parallelism = field(default_factory=Parallelism)

    @property
    def rules(self) -> LayerRules:
        """How the software lowers layers; as PyTorch where attention is eager."""
        return NO_RULES if self.attention == "eager" else self.release.rules

    def recomputing(self, *, near_host: bool) -> Iterator[Run]:
        """Yield the runs that recompute more than nobody said, the least first.

        near_host  whether the host's memory is joined by a link as quick as the devices' (GpuSpec.near_host)
        """
        for what, layers in self.recompute_or:
            if OFFLOAD not in what or (near_host and self.parallelism.pipeline == 1):
                yield replace(self, recompute=what, recompute_layers=layers)

    def in_mode(self, mode: Mode) -> Run:
        """Return the run in another mode, with what its software does there."""
        return replace(self, mode=mode, release=release_of(self.release.software, mode))

    @property
    def device_batch(self) -> int:
        """Sequences or images that one device processes at a time (one microbatch of its replica)."""
        return max(self.batch // (self.parallelism.data * self.parallelism.microbatches * self.accumulation), 1)


def spanned(devices: int, stride: int, run: Run) -> int:
    """Return the number of nodes over which a group of `devices` spreads, every `stride`-th device of the run."""
    per_node = max(run.parallelism.devices // run.parallelism.nodes, 1)
    least = min(-(-devices * stride // per_node), devices)
    return next(nodes for nodes in range(least, devices + 1) if devices % nodes == 0)


def refuse(loc: tuple[str | int, ...], why: str) -> NoReturn:
    """Raise BadInput for the field at `loc`."""
    raise BadInput(f"{'.'.join(map(str, loc[1:]))}: {why}", errors=[FieldError(loc, why)])


def parallel_errors(split: Parallelism) -> list[FieldError]:
    """Return the degrees of a request that contradict each other."""
    loc, errors = ("workload", "parallelism"), list[FieldError]()
    if split.devices % split.nodes:
        message = f"must divide the {split.devices} devices (data x tensor x pipeline x context), got {split.nodes}"
        errors.append(FieldError((*loc, "nodes"), message))
    if (split.data * split.tensor) % split.expert:
        message = f"must divide data x tensor, {split.data * split.tensor}, got {split.expert}"
        errors.append(FieldError((*loc, "expert"), message))
    errors += [FieldError((*loc, "virtual_pipeline"), message) for message in _interleaving_errors(split)]
    if split.tensor_overlap and not split.sequence:
        errors.append(FieldError((*loc, "tensor_overlap"), "is of gathers and scatters: requires sequence true"))
    if split.sequence and split.tensor == 1:
        errors.append(
            FieldError((*loc, "sequence"), "splits the layers between tensor-parallel ones: requires tensor > 1")
        )
    return errors


def _interleaving_errors(split: Parallelism) -> list[str]:
    """Return why the chunks of a stage cannot be interleaved: Megatron's rules (Narayanan et al. 2021)."""
    if split.virtual_pipeline == 1:
        return []
    if split.pipeline == 1 or split.schedule != "1f1b":
        return ["interleaves chunks of layers: requires pipeline > 1 and schedule 1f1b"]
    if split.microbatches % split.pipeline:
        return [f"requires microbatches in multiples of pipeline, {split.pipeline}, got {split.microbatches}"]
    return []
