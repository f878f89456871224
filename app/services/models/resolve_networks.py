"""Resolve the network of a request: a configuration, a built-in name or a graph, each with its importer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, replace
from functools import partial
from typing import Any

import msgspec

from app.errors import BadInput, FieldError
from app.networks import builtin as builtin_models
from app.networks.convnets import CONVNETS, is_convnet
from app.networks.convnets import lower as lower_convnet
from app.networks.importers import diffusers, hf
from app.networks.run import Formats, Parallelism, Run, has_formats, is_diffusion, parallel_errors
from app.services.graphs.graph_store import JSON, Graphs, Source, lower_source
from app.stacks.release import EAGER_DTYPES, Assumption, Release, default_software, release_of
from app.steps.networks import Network
from app.tables.ops import DTYPE_BYTES, DTYPE_CODE, EXPERT_DTYPES, WEIGHT_DTYPES, WEIGHT_ONLY_DTYPES
from app.wire.graph_form import GraphWorkload, NetworkWorkload, check_graph
from app.wire.names import nearest_of_family
from app.wire.network_form import ModelWorkload, ParallelismIn

_LOC = ("workload",)
# Default image side in pixels: ImageNet's usual crop, that of diffusion transformers, and networks that need another.
IMAGE_SIZE = 224
_OWN_SIZES = {"inception_v3": 299}
# Format of what nobody gives or publishes another of, and of what a quantised model leaves as it is; in training that
# of mixed precision. FP32 checkpoints are served in 16 bits too, as by vLLM.
_DTYPE, _PUBLISHED = "bf16", {"float16": "fp16"}
_BLOCKS = "fp8_block"
# QLoRA's frozen weights as Hugging Face states them, and the formats of all else beside them.
_NF4, _HALVES = {"quant_method": "bitsandbytes", "load_in_4bit": True}, ("bf16", "fp16")
# Format of the operators that products in MXFP8 run as: as fast, but for the quantisation of their operands.
MXFP8, _LIKE_MXFP8 = "mxfp8", "fp8"
_MEANINGS = {"decode": ": the context length, including the new token"}


def resolve_network(workload: NetworkWorkload, graphs: Graphs | None) -> tuple[Network, Run]:
    """Return the network and its run. Raises BadInput that names wrong or missing fields, NotFound for a graph's id."""
    if isinstance(workload, GraphWorkload):
        return _graph(workload, graphs)
    if (workload.config is None) == (workload.name is None):
        raise _refused(
            "config", "send either config (a Hugging Face or Diffusers config.json) or name (a built-in network)"
        )
    if workload.config is not None:
        return _transformer(workload, workload.config)
    name = workload.name or ""
    config = builtin_models.find_config(name)
    if config is not None:
        return _transformer(workload, config)
    if is_convnet(name):
        return Network(("convnet", name), partial(lower_convnet, name)), convnet_run(workload, name)
    raise _refused("name", _unknown(name))


def is_network_name(name: str) -> bool:
    """Return whether a network has this name."""
    return is_convnet(name) or builtin_models.find_config(name) is not None


def network_names() -> tuple[str, ...]:
    """Return the names of all built-in networks."""
    return (*builtin_models.names(), *sorted(CONVNETS))


def _unknown(name: str) -> str:
    names = network_names()
    near = nearest_of_family(name.lower().rpartition("/")[2], names)
    hub = "; of a model on Hugging Face send the text of its config.json as config, in place of name"
    return f"unknown network {name[:100]!r}; the closest are {', '.join(near or names[:5])}{hub * ('/' in name)}"


def _refused(field: str, message: str) -> BadInput:
    return BadInput.at((*_LOC, field), message)


def _transformer(workload: ModelWorkload, config: Mapping[str, Any]) -> tuple[Network, Run]:
    if is_diffusion(config):
        return _denoiser(workload, config)
    run = transformer_run(workload, of_images="patch_size" in config)
    key = msgspec.json.encode(config, order="sorted")
    return Network(("config", key), partial(hf.lower, config), len(key)), run


def transformer_run(workload: ModelWorkload, *, of_images: bool) -> Run:
    """Return the run of a transformer that takes images, or else tokens. Raises BadInput that names wrong fields."""
    _refuse_frames(workload)
    _refuse_layout(workload)
    if workload.sequence is None and not of_images:
        raise _refused("sequence", f"tokens per sequence are missing{_MEANINGS.get(workload.mode, '')}")
    if workload.sequence is not None and of_images:
        raise _refused("sequence", "this transformer takes image_size: its patches are its tokens")
    if workload.image_size is not None and not of_images:
        raise _refused("image_size", "this transformer takes sequence, not images")
    formats = formats_of(workload)
    run = to_run(workload, dtype=workload_dtype(workload, formats))
    return replace(
        with_transformer_options(run, workload),
        formats=formats,
        assumed=run.assumed or (formats is not None and workload.dtype not in EXPERT_DTYPES),
        sequence=int(workload.sequence or 1),
        of_images=of_images,
        image_size=int(workload.image_size or IMAGE_SIZE),
        input_copy=workload.input_copy,
        kv_dtype=workload.kv_dtype or _cache_format(run, formats),
    )


def _cache_format(run: Run, formats: Formats | None) -> str | None:
    """Return the format of the KV cache by a model's files, else its stack's of such models; None: attention's."""
    if formats is not None:
        return formats.kv_cache or None
    return run.release.quantised_cache if DTYPE_BYTES[DTYPE_CODE[run.dtype]] <= 1.0 else None


def _denoiser(workload: ModelWorkload, config: Mapping[str, Any]) -> tuple[Network, Run]:
    """Return a forward pass of a diffusion transformer, whose `sequence` is the text's tokens."""
    if workload.mode in ("prefill", "decode"):
        raise _refused("mode", f"a diffusion transformer has no {workload.mode}: use inference or training")
    if workload.attention == "eager":
        raise _refused("attention", "of diffusion transformers is fused: it runs scaled_dot_product_attention")
    for field in ("kv_dtype", "output_tokens"):
        if getattr(workload, field) is not None:
            raise _refused(field, "a diffusion transformer generates no tokens")
    if workload.dtype in WEIGHT_DTYPES:
        raise _refused("dtype", f"{workload.dtype} is of linear layers of language models")
    _refuse_layout(workload)
    if workload.input_copy != "none":
        raise _refused("input_copy", "a diffusion transformer's input is made on the device")
    run = with_transformer_options(_unsplit_run(workload, dtype=workload_dtype(workload, None)), workload)
    model, part = diffusers.read(config), workload.part or "denoiser"
    side = int(workload.image_size or model.side)
    if part != "denoiser" and workload.mode == "training":
        raise _refused("part", f"{part} is only run in inference: the denoiser is what is trained")
    if part == "text_encoders" and workload.sequence is not None:
        raise _refused("sequence", "each text encoder has the prompt length that its pipeline pads to: leave it out")
    run = replace(
        run,
        attention=workload.attention or "flash",
        loss=False,
        sequence=int(workload.sequence or model.text_tokens),
        image_size=side,
        image_width=int(workload.image_width or side),
        frames=int(workload.frames or 1),
        part=part,
    )
    key = msgspec.json.encode(config, order="sorted")
    return Network(("config", key), partial(diffusers.lower, config), len(key)), run


def _refuse_frames(workload: ModelWorkload) -> None:
    """Raise BadInput for the fields of images and videos that only diffusion transformers have."""
    for field in ("image_width", "frames", "part"):
        if getattr(workload, field) is not None:
            raise _refused(field, "only diffusion transformers (a Diffusers config.json) take it")


def _refuse_layout(workload: ModelWorkload) -> None:
    """Raise BadInput for a layout of images that transformers do not have."""
    if workload.memory_format != "channels_first":
        raise _refused("memory_format", "is of ConvNets and graphs: transformers have no channels last")


def with_transformer_options(run: Run, workload: ModelWorkload) -> Run:
    """Return the run with what only transformers have. Raises BadInput for adapters outside of training."""
    return replace(
        run,
        attention=attention_kernels(workload, run),  # type: ignore[arg-type]
        microscaled=workload.dtype == MXFP8,
        loss=workload.mode == "training",
        **_recomputation(workload, run),
        **_adapters(workload),
    )


def _recomputation(workload: ModelWorkload, run: Run) -> dict[str, Any]:
    """Return the modules that backward recomputes; of a request that says nothing, what more where memory is short."""
    modules, training = workload.recompute_modules, workload.mode == "training"
    if modules is None:
        return {"recompute_or": run.release.recompute_or} if training and workload.recompute is None else {}
    if not training or workload.recompute not in (None, "selective"):
        raise _refused("recompute_modules", "is what selective recomputation in training is of: leave out recompute")
    return {"recompute": tuple(sorted({*modules}))}


def _adapters(workload: ModelWorkload) -> dict[str, Any]:
    """Return rank and place of the adapters that alone are trained; none: all weights are."""
    nested = None if isinstance(workload.trainable, str) else workload.trainable.lora
    field, lora = ("lora", workload.lora) if nested is None else ("trainable", nested)
    if nested is not None and workload.lora is not None:
        raise _refused("lora", "is given in trainable too: send one of them")
    if workload.quantization is not None and lora is None:
        raise _refused("quantization", "is of frozen weights: send lora, the adapters that are trained")
    if workload.quantization is not None and workload.dtype not in (None, *_HALVES):
        raise _refused("quantization", f"leaves all else in 16 bits, not {workload.dtype}: send dtype bf16 or fp16")
    if lora is None:
        return {}
    if workload.mode != "training":
        raise _refused(field, f"is only valid in mode training, not {workload.mode}")
    return {"adapter_rank": int(lora.rank), "adapted": tuple(lora.modules or ())}


def formats_of(workload: ModelWorkload) -> Formats | None:
    """Return the formats of `quantization_config` where they decide: not in training, and without another dtype.

    A dtype that the model is published in means as published, FP8 by blocks too: other parts stay as they are. Adapters
    are trained beside weights that are only stored in few bits.
    """
    config = config_of(workload)
    if config is not None and workload.dtype == "fp8" and not has_formats(config):
        config = builtin_models.as_published_in_fp8(config)
    if config is None:
        return None
    if workload.quantization is not None:
        return hf.formats_of({**config, "quantization_config": _NF4})
    whole = workload.trainable == "all" and workload.lora is None
    if not has_formats(config) or (workload.mode == "training" and (workload.dtype or whole)):
        return None
    formats = hf.formats_of(config)
    if formats is None:
        return None
    published = {None, *filter(None, astuple(formats))}
    if workload.dtype not in published | ({"fp8"} if _BLOCKS in published else set()):
        return None
    stored = {*astuple(formats)} <= {"", *WEIGHT_ONLY_DTYPES}
    return formats if stored or workload.mode != "training" else None


def config_of(workload: ModelWorkload) -> Mapping[str, Any] | None:
    """Return the configuration that a request sends or names; None of a network that has none."""
    return workload.config if workload.name is None else builtin_models.find_config(workload.name)


def workload_dtype(workload: ModelWorkload, formats: Formats | None) -> str:
    """Return the format of all that has no format of its own."""
    if workload.dtype == MXFP8:
        return _LIKE_MXFP8
    if workload.dtype is not None and (formats is None or workload.dtype in _HALVES):
        return workload.dtype
    published = None if workload.mode == "training" else published_dtype(config_of(workload) or {})
    return _PUBLISHED.get(published or "", _DTYPE)


def published_dtype(config: Mapping[str, Any]) -> str | None:
    """Return the format of the weights that a configuration states, as PyTorch calls it; None if it states none."""
    text = config.get("text_config")
    for part in (text if isinstance(text, Mapping) else {}, config):
        for name in ("torch_dtype", "dtype"):
            if isinstance(part.get(name), str):
                return str(part[name])
    return None


def default_image_size(name: str) -> int:
    """Return a ConvNet's default image side, pixels."""
    return _OWN_SIZES.get(name.partition("/")[0], IMAGE_SIZE)


def convnet_run(workload: ModelWorkload, name: str) -> Run:
    """Return the run of a ConvNet. Raises BadInput that names wrong fields."""
    if workload.mode in ("prefill", "decode"):
        raise _refused("mode", f"{name} is a ConvNet without {workload.mode}: use inference or training")
    _refuse_frames(workload)
    if workload.sequence is not None:
        raise _refused("sequence", f"{name} is a ConvNet: it takes image_size")
    for field in ("lora", "quantization"):
        if getattr(workload, field) is not None:
            raise _refused(field, f"{name} is a ConvNet: adapters are of transformers")
    run = _unsplit_run(workload, dtype=workload_dtype(workload, None))
    size = int(workload.image_size or default_image_size(name))
    release = run.release.without_attention()
    return replace(run, of_images=True, image_size=size, input_copy=workload.input_copy, release=release)


def _graph(workload: GraphWorkload, graphs: Graphs | None) -> tuple[Network, Run]:
    if graphs is not None:
        source = graphs.source(workload.graph, workload.graph_id)
    elif workload.graph is not None and workload.graph_id is None:
        source = Source(JSON, check_graph(workload.graph))
    else:
        raise _refused("graph", "send the graph itself: stored graphs are not available here")
    dims = {name: int(size) for name, size in workload.dims.items()}
    workload = _with_batch(workload, dims.pop("batch", None))
    run = _unsplit_run(workload, dtype=workload.dtype or source.dtype)
    # Nodes of a graph in FP32 may say TF32, which nobody asked for: a GPU without it does not round.
    assumed, release = run.dtype == "fp32", run.release.without_attention()
    run = replace(run, sequence=int(workload.sequence or 1), release=release, assumed=assumed)
    lower = lower_source if graphs is None else graphs.workload
    key = source.id.encode() or msgspec.json.encode(source.body)
    return Network(("graph", key, *sorted(dims.items())), partial(lower, source, dims), len(key)), run


def _with_batch(workload: GraphWorkload, batch: int | None) -> GraphWorkload:
    """Return the workload with the batch of `dims`, which devices, memory and throughput depend on."""
    if batch is None:
        return workload
    if int(workload.batch) not in (1, batch):
        raise _refused("dims", f"batch is {batch} here and {workload.batch:g} in the workload: give it once")
    return msgspec.structs.replace(workload, batch=batch)


def _unsplit_run(workload: NetworkWorkload, *, dtype: str) -> Run:
    """Return the run of a network that cannot be split by tensors."""
    run, split = to_run(workload, dtype=dtype), workload.parallelism
    for field in ("tensor", "expert", "context"):
        if getattr(split, field) > 1:
            message = (
                f"only transformers by a Hugging Face configuration can be split this way, not this {workload.kind}"
            )
            raise BadInput(message, errors=[FieldError((*_LOC, "parallelism", field), message)])
    return run


SERVING_MODES = ("prefill", "decode")


def to_run(workload: NetworkWorkload, *, dtype: str) -> Run:
    """Return how the network is run. Raises BadInput that names contradicting fields."""
    software = default_software(workload.mode, dtype) if workload.software is None else workload.software
    release = release_of(software, workload.mode).on_host(workload.host)
    split, recompute = to_parallelism(workload.parallelism, release), release.recomputation(workload.recompute)
    run = Run(
        mode=workload.mode,
        batch=int(workload.batch),
        dtype=dtype,
        # Of weights alone, it says nothing of the 16 bits beside them.
        assumed=workload.dtype in (None, *WEIGHT_ONLY_DTYPES) and not isinstance(workload, GraphWorkload),
        fused=workload.fused or workload.compiled,
        memory_format=workload.memory_format,
        optimizer=workload.optimizer,
        accumulation=int(workload.gradient_accumulation),
        recompute=recompute,
        release=release,
        parallelism=split,
    )
    errors = [*_batch_errors(run), *parallel_errors(split)]
    if run.mode != "training":
        message = f"is only valid in mode training, not {run.mode}"
        training_only = {
            "recompute": bool(recompute),
            "failures": workload.failures is not None,
            "gradient_accumulation": run.accumulation > 1,
        }
        errors += [FieldError((*_LOC, field), message) for field, is_set in training_only.items() if is_set]
        errors += [FieldError((*_LOC, "parallelism", "zero"), message)] * (split.zero > 0)
    if errors:
        raise BadInput.of(errors)
    return run


def to_parallelism(form: ParallelismIn, release: Release) -> Parallelism:
    """Return the parallelism with integer sizes; replicas of attention are data-parallel ones with experts between.

    What is left out is as the stack usually does it, of several devices.
    """
    replicas = int(form.attention_data)
    if form.tensor % replicas:
        raise BadInput.at((*_LOC, "parallelism", "attention_data"), f"must divide tensor, {form.tensor:.0f}")
    alike = ("pipeline", "context", "virtual_pipeline", "expert", "microbatches", "nodes")
    return Parallelism(
        **{name: int(getattr(form, name)) for name in alike},
        data=int(form.data) * replicas,
        tensor=int(form.tensor) // replicas,
        attention=replicas,
        tensor_overlap=form.tensor_overlap,
        sequence=form.sequence or (release.splits_sequence and form.tensor > replicas),
        zero=release.zero if form.zero is None else int(form.zero),
        schedule=form.schedule,
        network_bytes_per_s=float(form.network_bytes_per_s),
        link=form.link,
    )


def run_assumption(run: Run) -> Assumption | None:
    """Return the assumption made for a serving stack without measurements; None for other runs."""
    return run.release.assumption if run.mode in SERVING_MODES else None


def attention_kernels(workload: ModelWorkload, run: Run) -> str:
    """Return the attention kernels: as requested, else those of the mode's usual software.

    In 16 bits and fewer kernels are fused, as in Megatron-LM and in PyTorch from 2.0 on, for Hugging Face too.
    """
    if workload.attention is not None:
        return workload.attention
    fused = run.mode in SERVING_MODES or (run.dtype not in EAGER_DTYPES and run.release.fuses_attention)
    return "flash" if fused else "eager"


def _batch_errors(run: Run) -> list[FieldError]:
    split = run.parallelism
    parts = split.data * split.microbatches * run.accumulation
    if run.batch % parts == 0:
        return []
    prefix = f"{run.batch} cannot be split into data {split.data} x microbatches {split.microbatches} x "
    return [FieldError((*_LOC, "batch"), f"{prefix}gradient_accumulation {run.accumulation}: a multiple of {parts}")]
