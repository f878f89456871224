"""Convert a request's run options to a Run, and check the rules between its fields."""

from __future__ import annotations

from app.errors import BadInput, FieldError
from app.networks.run import Parallelism, Run
from app.stacks.release import EAGER_DTYPES, Assumption, default_software, release_of
from app.wire.decoding import summary
from app.wire.graph_form import NetworkWorkload
from app.wire.network_form import ModelWorkload, ParallelismIn

_LOC = ("workload",)
SERVING_MODES = ("prefill", "decode")


def to_run(workload: NetworkWorkload, *, dtype: str) -> Run:
    """Return how the network is run. Raises BadInput that names contradicting fields."""
    split, given = to_parallelism(workload.parallelism), workload
    software = default_software(given.mode, dtype) if given.software is None else given.software
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
        release=release_of(software, given.mode),
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


def run_assumption(run: Run) -> Assumption | None:
    """Return the assumption made for a serving stack without measurements; None for other runs."""
    return run.release.assumption if run.mode in SERVING_MODES else None


def attention_kernels(workload: ModelWorkload, run: Run) -> str:
    """Return the attention kernels: as requested, else those of the mode's usual software.

    Training in 16 bits and fewer runs fused kernels, as Megatron-LM does and PyTorch from 2.0 on, for Hugging Face too.
    """
    if workload.attention is not None:
        return workload.attention
    trains = run.mode == "training" and (workload.dtype or "fp32") not in EAGER_DTYPES
    fused = run.mode in SERVING_MODES or (trains and run.release.fuses_attention)
    return "flash" if fused else "eager"


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
