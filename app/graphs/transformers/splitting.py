"""Checks that a transformer supports a run's mode, sizes and parallelism."""

from __future__ import annotations

from app.graphs.refusal import refuse
from app.graphs.run import Run
from app.graphs.transformers.architecture import (
    Architecture,
    Attention,
    AttentionModule,
    Experts,
    FeedForward,
    Recurrence,
)
from app.graphs.transformers.lowering import spans_of
from app.tables.ops import WEIGHT_DTYPES

_TENSOR = ("workload", "parallelism", "tensor")
_EXPERT = ("workload", "parallelism", "expert")
_CONTEXT = ("workload", "parallelism", "context")


def check(architecture: Architecture, run: Run) -> None:
    """Raise BadInput, naming the field, for an unsupported mode, too many tokens, or sizes that do not divide."""
    if run.mode in ("prefill", "decode") and not architecture.generates:
        refuse(("workload", "mode"), "the model generates no tokens: inference or training")
    patches = architecture.stacks[0].embedding.patches
    if patches and run.image_size not in (patches.image_size, Run().image_size):
        refuse(("workload", "image_size"), f"the model has positions for images of {patches.image_size} pixels a side")
    for stack in architecture.stacks:
        max_positions = stack.embedding.max_positions
        if max_positions and run.sequence > max_positions:
            refuse(("workload", "sequence"), f"the model has positions for {max_positions} tokens")
        for layer, _ in stack.layers:
            for mixer in (layer.attention, layer.cross, layer.beside):
                if mixer:
                    _mixer(mixer, run)
            if layer.feed_forward:
                _inner(layer.feed_forward, run)
    mixtures = [
        layer for stack in architecture.stacks for layer, _ in stack.layers if isinstance(layer.feed_forward, Experts)
    ]
    if run.dtype in WEIGHT_DTYPES and not mixtures:
        refuse(("workload", "dtype"), f"{run.dtype} is of experts' weights, and the model has no experts")
    if run.parallelism.expert > 1 and not mixtures:
        refuse(_EXPERT, "the model has no experts")
    if run.parallelism.sequence:
        _tokens(architecture, run)
    if run.parallelism.context > 1:
        _shared_sequences(architecture, run)


def _shared_sequences(architecture: Architecture, run: Run) -> None:
    """Refuse context parallelism where sequences are not dealt evenly, or attention is not one fused kernel."""
    context = run.parallelism.context
    if run.mode == "decode":
        refuse(_CONTEXT, "shares the tokens of a sequence, and decode has one new token: use tensor")
    if run.attention == "eager":
        refuse(_CONTEXT, "requires fused attention: send attention flash")
    if len(architecture.stacks) > 1 or architecture.stacks[0].embedding.patches:
        refuse(_CONTEXT, "is of decoders and encoders of text")
    if run.sequence % (2 * context):
        refuse(_CONTEXT, f"must divide half of the {run.sequence} tokens, got {context}")
    for layer, _ in architecture.stacks[0].layers:
        attention = layer.attention
        if not isinstance(attention, Attention) or attention.latent or attention.relative_rows or layer.beside:
            refuse(_CONTEXT, "is of attention to keys and values, which this model has not in all layers")


def _mixer(spec: Attention | AttentionModule | Recurrence, run: Run) -> None:
    """Refuse tensor parallelism that does not divide the heads."""
    tensor = run.parallelism.tensor
    linear = isinstance(spec, Recurrence)
    heads, shared = (spec.value_heads, spec.key_heads) if isinstance(spec, Recurrence) else (spec.heads, spec.kv_heads)
    if heads % tensor:
        refuse(_TENSOR, f"must divide the {heads} {'heads of linear attention' if linear else 'attention heads'}")
    if shared % tensor and tensor % shared:
        of = "keys of linear attention" if linear else "keys and values"
        refuse(_TENSOR, f"must divide the {shared} heads of {of}, or be a multiple of them")
    if isinstance(spec, AttentionModule) and spec.output_rank and spec.output_groups % tensor:
        refuse(_TENSOR, f"must divide the {spec.output_groups} groups of heads of the output projection")


def _inner(spec: FeedForward | Experts, run: Run) -> None:
    """Refuse parallelism that does not divide inner features or experts."""
    tensor, expert, data = run.parallelism.tensor, run.parallelism.expert, run.parallelism.data
    if isinstance(spec, FeedForward):
        if spec.inner % tensor:
            refuse(_TENSOR, f"must divide the {spec.inner} inner features")
        return
    if spec.count % expert:
        refuse(_EXPERT, f"must divide the {spec.count} experts")
    if (expert % data and data % expert) or data * tensor % expert:
        refuse(_EXPERT, f"must divide data x tensor = {data * tensor} devices, and data or its multiple")
    if spec.each.inner % (tensor * min(expert, data) // expert or 1):
        refuse(_TENSOR, f"must divide the {spec.each.inner} inner features of an expert")
    if spec.shared and spec.shared.inner % tensor:
        refuse(_TENSOR, f"must divide the {spec.shared.inner} inner features of the shared expert")


def _tokens(architecture: Architecture, run: Run) -> None:
    """Refuse sequence parallelism that does not divide the tokens."""
    for span in spans_of(architecture, run):
        if span is not None and span.tokens % run.parallelism.tensor:
            refuse(_TENSOR, f"must divide the {span.tokens:.0f} tokens of a device where sequence is true")
