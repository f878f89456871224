"""From what a request says about running a network to a Run; rules between its fields are checked here."""

from __future__ import annotations

from app.errors import BadInput, FieldError
from app.graphs.run import Parallelism, Run
from app.ops.stacks import is_eager
from app.wire.decoding import summary
from app.wire.network_form import ModelWorkload, NetworkWorkload, ParallelismIn

_LOC = ("workload",)
# Formats in which PyTorch, eager, is the stack unless the request names another.
_EAGER_DTYPES = ("fp64", "fp32", "tf32")
_SERVING_MODES = ("prefill", "decode")


def run_of(workload: NetworkWorkload, *, dtype: str) -> Run:
    """How the network is run; BadInput names every field that contradicts another one."""
    split, given = parallelism_of(workload.parallelism), workload
    run = Run(
        mode=given.mode,
        batch=int(given.batch),
        dtype=dtype,
        fused=given.fused,
        optimizer=given.optimizer,
        accumulation=int(given.gradient_accumulation),
        recompute=given.recompute,
        parallelism=split,
    )
    errors = [*_batch_errors(run), *_parallel_errors(split)]
    if run.mode != "training":
        words = f"belongs to mode training, not {run.mode}"
        asked = {"recompute": run.recompute, "gradient_accumulation": run.accumulation > 1}
        errors += [FieldError((*_LOC, field), words) for field, given in asked.items() if given]
        errors += [FieldError((*_LOC, "parallelism", "zero"), words)] * (split.zero > 0)
    if errors:
        raise BadInput(summary(errors), errors=errors)
    return run


def parallelism_of(form: ParallelismIn) -> Parallelism:
    """The same with whole numbers as such."""
    return Parallelism(
        data=int(form.data),
        tensor=int(form.tensor),
        pipeline=int(form.pipeline),
        expert=int(form.expert),
        microbatches=int(form.microbatches),
        nodes=int(form.nodes),
        sequence=form.sequence,
        zero=int(form.zero),
        schedule=form.schedule,
        network_bytes_per_s=float(form.network_bytes_per_s),
    )


def is_host_launched(software: str | None, mode: str, dtype: str) -> bool:
    """Whether the host launches each operator: said by the stack, else by format; training is PyTorch's, eager."""
    if software is not None:
        return bool(is_eager(software))
    return mode == "training" or dtype in _EAGER_DTYPES


def attention_of(workload: ModelWorkload) -> str:
    """The kernels of attention: those asked for, else what the mode's stacks run."""
    return workload.attention or ("flash" if workload.mode in _SERVING_MODES else "eager")


def _batch_errors(run: Run) -> list[FieldError]:
    split = run.parallelism
    parts = split.data * split.microbatches * run.accumulation
    if run.batch % parts == 0:
        return []
    words = f"{run.batch} cannot be split into data {split.data} x microbatches {split.microbatches} x "
    return [FieldError((*_LOC, "batch"), f"{words}gradient_accumulation {run.accumulation}: a multiple of {parts}")]


def _parallel_errors(split: Parallelism) -> list[FieldError]:
    loc, errors = (*_LOC, "parallelism"), []
    if split.devices % split.nodes:
        words = f"must divide the {split.devices} devices (data x tensor x pipeline), got {split.nodes}"
        errors.append(FieldError((*loc, "nodes"), words))
    if (split.data * split.tensor) % split.expert:
        words = f"must divide data x tensor, {split.data * split.tensor}, got {split.expert}"
        errors.append(FieldError((*loc, "expert"), words))
    if split.sequence and split.tensor == 1:
        errors.append(FieldError((*loc, "sequence"), "splits what lies between tensor-parallel layers: needs tensor"))
    return errors
