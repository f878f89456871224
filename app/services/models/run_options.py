"""Convert a request's run options to a Run, and check the rules between its fields."""

from __future__ import annotations

import numpy as np

from app.errors import BadInput, FieldError
from app.graphs.run import Parallelism, Run
from app.ops.stacks import (
    MEGATRON,
    STACKS,
    Assumption,
    assumption_of,
    eager_host_s,
    is_eager,
    is_first_engine,
    is_megatron,
    launches_early,
    stack_of,
    sums_by_library,
    torch_version,
)
from app.wire.decoding import summary
from app.wire.network_form import ModelWorkload, NetworkWorkload, ParallelismIn

_LOC = ("workload",)
# Formats for which eager PyTorch is the default software.
_EAGER_DTYPES = ("fp64", "fp32", "tf32")
# First versions of PyTorch with fused attention; with FlashAttention 2; and whose wheels hold a cuDNN after 9.15, which
# PyTorch prefers on Hopper (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, check_prefer_cudnn_attention).
_FIRST_FUSED, _SECOND_FLASH, _CUDNN_ATTENTION = (2, 0), (2, 2), (2, 11)
_SERVING_MODES = ("prefill", "decode")


def to_run(workload: NetworkWorkload, *, dtype: str) -> Run:
    """Return how the network is run. Raises BadInput that names contradicting fields."""
    split, given = to_parallelism(workload.parallelism), workload
    stack = serving_stack(given.software, given.mode, dtype)
    run = Run(
        mode=given.mode,
        batch=int(given.batch),
        dtype=dtype,
        fused=given.fused,
        memory_format=given.memory_format,
        optimizer=given.optimizer,
        accumulation=int(given.gradient_accumulation),
        recompute=given.recompute in (True, "full"),
        recompute_scores=given.recompute == "selective",
        eager_host_s=eager_host_s(given.software, given.mode),
        multi_tensor=given.mode == "training" and torch_version(given.software) is not None,
        stack=stack,
        sums_by_library=stack is not None and sums_by_library(given.software),
        first_engine=stack is not None and is_first_engine(given.software),
        early_launch=stack is not None and launches_early(given.software),
        parallelism=split,
    )
    errors = [*_batch_errors(run), *_parallel_errors(split)]
    if run.mode != "training":
        message = f"is only valid in mode training, not {run.mode}"
        training_only = {
            "recompute": run.recompute or run.recompute_scores,
            "gradient_accumulation": run.accumulation > 1,
        }
        errors += [FieldError((*_LOC, field), message) for field, is_set in training_only.items() if is_set]
        errors += [FieldError((*_LOC, "parallelism", "zero"), message)] * (split.zero > 0)
    if errors:
        raise BadInput(summary(errors), errors=errors)
    return run


def to_parallelism(form: ParallelismIn) -> Parallelism:
    """Return the parallelism with integer sizes; replicas of attention are data-parallel ones with experts between."""
    replicas = int(form.attention_data)
    if form.tensor % replicas:
        message = f"must divide tensor, {form.tensor:.0f}, got {replicas}"
        raise BadInput(
            f"workload.parallelism.attention_data: {message}",
            errors=[FieldError((*_LOC, "parallelism", "attention_data"), message)],
        )
    return Parallelism(
        data=int(form.data) * replicas,
        tensor=int(form.tensor) // replicas,
        pipeline=int(form.pipeline),
        context=int(form.context),
        virtual_pipeline=int(form.virtual_pipeline),
        expert=int(form.expert),
        microbatches=int(form.microbatches),
        nodes=int(form.nodes),
        tensor_overlap=form.tensor_overlap,
        sequence=form.sequence,
        zero=int(form.zero),
        schedule=form.schedule,
        network_bytes_per_s=float(form.network_bytes_per_s),
    )


def is_host_launched(software: str | None, mode: str, dtype: str) -> bool:
    """Return whether the host launches each operator: by the software, else by dtype; training is eager PyTorch."""
    if software is not None:
        return bool(is_eager(software))
    return mode == "training" or dtype in _EAGER_DTYPES


def serving_stack(software: str | None, mode: str, dtype: str) -> str | None:
    """Return the stack whose kernels run, of serving the first for an unknown one; None for PyTorch's own."""
    if mode == "training" and is_megatron(software):
        return MEGATRON
    if is_host_launched(software, mode, dtype):
        return None
    code = stack_of(software or "")
    return STACKS[0] if np.isnan(code) else STACKS[int(code)]


def run_assumption(workload: NetworkWorkload, run: Run) -> Assumption | None:
    """Return the assumption made for a serving stack without measurements; None for other runs."""
    serves = run.stack is not None and run.mode in _SERVING_MODES
    return assumption_of(workload.software) if serves else None


def attention_kernels(workload: ModelWorkload) -> str:
    """Return the attention kernels: as requested, else those of the mode's usual software.

    Training in 16 bits and fewer runs fused kernels, as Megatron-LM does and PyTorch from 2.0 on, for Hugging Face too.
    """
    if workload.attention is not None:
        return workload.attention
    version = torch_version(workload.software)
    trains = workload.mode == "training" and (workload.dtype or "fp32") not in _EAGER_DTYPES
    fused = workload.mode in _SERVING_MODES or (trains and (version is None or version >= _FIRST_FUSED))
    return "flash" if fused else "eager"


def is_first_flash(workload: ModelWorkload) -> bool:
    """Return whether fused attention is FlashAttention 1: that of PyTorch before 2.2."""
    version = torch_version(workload.software)
    return version is not None and version < _SECOND_FLASH


def is_cudnn_attention(workload: ModelWorkload) -> bool:
    """Return whether fused attention on Hopper is cuDNN's, as fast as FlashAttention 3: of PyTorch from 2.11 on."""
    version = torch_version(workload.software)
    return version is not None and version >= _CUDNN_ATTENTION


def _batch_errors(run: Run) -> list[FieldError]:
    split = run.parallelism
    parts = split.data * split.microbatches * run.accumulation
    if run.batch % parts == 0:
        return []
    prefix = f"{run.batch} cannot be split into data {split.data} x microbatches {split.microbatches} x "
    return [FieldError((*_LOC, "batch"), f"{prefix}gradient_accumulation {run.accumulation}: a multiple of {parts}")]


def _parallel_errors(split: Parallelism) -> list[FieldError]:
    loc, errors = (*_LOC, "parallelism"), []
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
