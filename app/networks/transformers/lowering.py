"""Lowering of transformers: an Architecture to the rows of one device, and the checks that it supports the run.

Blocks: a stack's embedding, one per distinct layer with its repeats, the head. Inference, training and prefill process
all tokens, decode one new token per sequence with `run.sequence` keys. The head processes all tokens, as in PyTorch,
and in prefill the last one of each sequence. An encoder-decoder has `run.sequence` tokens on both sides: prefill
encodes them and decodes the first token, decode has as many keys on both sides.

Transformers that differ only in sizes are one Architecture of batched configurations (app/networks/batched.py).
"""

from __future__ import annotations

from dataclasses import replace

from app.networks.build import FP32_BYTES
from app.networks.run import Run, refuse
from app.networks.transformers.architecture import (
    Architecture,
    Attention,
    AttentionModule,
    Experts,
    FeedForward,
    Head,
    Layer,
    Recurrence,
    Stack,
)
from app.networks.transformers.attention import Span, cross_attention, self_attention, softcapped
from app.networks.transformers.embedding import (
    corrected,
    embedded,
    fed_inputs,
    into_part,
    joined,
    low_rank_residual,
    opened,
    out_of_part,
    predicted,
)
from app.networks.transformers.feed_forward import feed_forward
from app.networks.transformers.latent import attention_module, latent_attention
from app.networks.transformers.recurrence import recurrence
from app.networks.transformers.row_writer import Flow, RowWriter
from app.ops.gemm import LOAD_BYTES
from app.tables.ops import EXPERT_DTYPES, WEIGHT_ONLY_DTYPES
from app.tables.workload import Workload

# Columns in 16 bits that kernels load at once.
_ALIGNED = LOAD_BYTES // 2


def write(architecture: Architecture, run: Run) -> Workload:
    """Return the rows of one device; `check` has accepted the run."""
    rows = RowWriter(architecture, run)
    rows.idle = architecture.towers / rows.tensor
    x: Flow = ()
    spans = spans_of(architecture, run)
    rows.encoded_tokens = _whole(architecture.stacks[0], run).keys
    for stack, span in zip(architecture.stacks, spans, strict=True):
        if span is not None:
            x = _stack(rows, stack, span, x)
        else:
            rows.idle = rows.idle + _held(architecture, stack, run)
    last, span = architecture.stacks[-1], spans[-1]
    if span is not None:
        _head(rows, x, architecture.head, span, last)
        if run.mode == "training" and run.release.trains_mtp:
            _predicting_more(rows, architecture, last, span)
    return rows.built()


def spans_of(architecture: Architecture, run: Run) -> list[Span | None]:
    """Return the tokens that each stack processes; None for a stack that does not run."""
    whole = [_whole(stack, run) for stack in architecture.stacks]
    token = whole[-1]._replace(queries=float(run.verified))
    if len(whole) == 1:
        return [token if run.mode == "decode" else whole[0]]
    if run.mode == "decode":
        return [None, token]
    return [whole[0], token._replace(keys=1.0) if run.mode == "prefill" else whole[1]]


def _whole(stack: Stack, run: Run) -> Span:
    """Return the span of all tokens of a stack."""
    sequence = stack.embedding.fixed_tokens or run.sequence
    return Span(run.device_batch, (sequence - run.cached) / run.parallelism.context, sequence)


def _held(architecture: Architecture, stack: Stack, run: Run) -> float:
    """Return the number of weights of a stack that does not run, which stay in memory."""
    alone = write(replace(architecture, stacks=(stack,), head=Head(), towers=0), run.in_mode("inference"))
    held: float = (alone.parameters * alone.repeats[..., alone.block]).sum(axis=-1)
    return held


def _stack(rows: RowWriter, stack: Stack, span: Span, encoded: Flow) -> Flow:
    """Add a stack's embedding, layers and final norm, which opens the head's block, and return the output rows."""
    rows.builder.begin()
    embedded(rows, stack, span)
    for layer, repeats in stack.layers:
        rows.builder.begin(repeats)
        _layer(rows, layer, span, stack, encoded)
    rows.builder.begin()
    tokens = span.tokens / rows.split
    if stack.altup:
        opened(rows, (), stack.altup, stack, tokens)
    if stack.streams:
        x = joined(rows, tokens, stack.width, stack.streams)
        return rows.gathered(rows.norm(x, tokens, stack.width, "final_norm", stack.norm), span.tokens, stack.width)
    x = rows.entering_norm((), tokens, stack.width, "final_norm", stack.norm) if stack.final_norm else ()
    x = rows.gathered(x, span.tokens, stack.width)
    return rows.linear(x, span.batch, stack.projected, stack.width, "projection") if stack.projected else x


def _layer(rows: RowWriter, layer: Layer, span: Span, stack: Stack, encoded: Flow) -> None:
    """Add one layer as a block: its parts, each with its norms and residual sum."""
    width, tokens = stack.width, span.tokens

    def attended(x: Flow) -> Flow:
        assert layer.attention is not None
        y = _mixed(rows, x, layer.attention, span, width)
        if stack.altup:
            return low_rank_residual(rows, x, y, stack.altup, stack, tokens / rows.split)
        if layer.beside is None:
            return y
        return rows.each("add", (*y, *recurrence(rows, x, layer.beside, span, width)), tokens, width, "beside.sum")

    def crossed(x: Flow) -> Flow:
        assert layer.cross is not None
        seen = span._replace(keys=rows.encoded_tokens)
        return cross_attention(rows, x, encoded, layer.cross, seen, width)

    def fed(x: Flow) -> Flow:
        assert layer.feed_forward is not None
        return feed_forward(rows, x, layer.feed_forward, span.batch, tokens, width)

    def normed(x: Flow, name: str) -> Flow:
        return rows.norm(x, tokens / rows.split, width, name, stack.norm)

    def entered(x: Flow, name: str) -> Flow:
        return rows.entering_norm(x, tokens / rows.split, width, name, stack.norm)

    x: Flow = predicted(rows, (), stack.altup, stack, tokens / rows.split) if stack.altup else ()
    if layer.order in ("parallel", "parallel_normed"):
        first = entered(x, "norm")
        second = first if layer.order == "parallel" else normed(x, "mlp.norm")
        y = rows.each("add", (*attended(first), *fed(second)), tokens / rows.split, width, "parallel.sum")
        rows.residual(x, y, tokens, width)
        return
    parts = {
        "attention": (layer.attention, attended),
        "cross": (layer.cross, crossed),
        "mlp": (layer.feed_forward, fed),
    }
    for name, (spec, part) in parts.items():
        if spec is None:
            continue
        if stack.streams:
            y = part(normed(into_part(rows, x, tokens, width, stack.streams, name), f"{name}.norm"))
            x = out_of_part(rows, (*x, *y), tokens, width, stack.streams, name)
            continue
        if layer.order == "post":
            x = entered(rows.residual(x, part(x), tokens, width), f"{name}.norm")
            continue
        y = part(x if layer.order == "inner" else entered(x, f"{name}.norm"))
        x = rows.residual(x, y if layer.order == "pre" else normed(y, f"{name}.post_norm"), tokens, width)
    if stack.altup:
        x = corrected(rows, x, stack.altup, stack, tokens / rows.split)
    if stack.layer_inputs:
        fed_inputs(rows, x, stack.layer_inputs, stack, tokens / rows.split)


def _mixed(rows: RowWriter, x: Flow, spec: Attention | AttentionModule | Recurrence, span: Span, width: float) -> Flow:
    """Add the part of a layer that mixes tokens, and return its output rows."""
    if isinstance(spec, AttentionModule):
        return attention_module(rows, x, spec, span, width)
    if isinstance(spec, Recurrence):
        return recurrence(rows, x, spec, span, width)
    if spec.latent:
        return latent_attention(rows, x, spec, spec.latent, span, width)
    return self_attention(rows, x, spec, span, width)


def _head(rows: RowWriter, x: Flow, head: Head, span: Span, stack: Stack) -> None:
    """Add pooling, logits and labels, each from the final norm; in prefill from each sequence's last token."""
    width, batch = stack.width, span.batch
    tokens = batch if rows.run.mode == "prefill" else span.tokens
    pooled = x
    if head.pooled:
        pooled = rows.linear(x, batch, width, width, "pooler", bias=True)
        pooled = rows.each("tanh", pooled, batch, width, "pooler.tanh")
    if head.vocabulary:
        _logits(rows, x, head, tokens, stack)
    if head.labels:
        source, b = (pooled, batch) if head.of == "sequence" else (x, tokens)
        if head.transform and not head.vocabulary:
            source = _transformed(rows, source, head, b, stack)
        rows.linear(source, b, head.labels, width, "labels", bias=head.labels_bias, dtype=rows.product_dtype)


def _predicting_more(rows: RowWriter, architecture: Architecture, stack: Stack, span: Span) -> None:
    """Add layers of multi-token prediction (DeepSeek-V3, Gloeckle et al. 2024), each depth with logits and a loss.

    They take the hidden state beside the next token's embedding. The logits' weights are the model's.
    """
    tokens, local, width = span.tokens, span.tokens / rows.split, stack.width
    for k, (layer, depths) in enumerate(architecture.mtp):
        if k == 0:
            rows.builder.begin(depths)
            seen, token = (rows.norm((), local, width, f"mtp.{name}", stack.norm) for name in ("hidden", "token"))
            x = rows.gathered(rows.each("copy", (*seen, *token), local, 2.0 * width, "mtp.join"), tokens, 2.0 * width)
            rows.linear(x, tokens, width / rows.tensor, 2.0 * width, "mtp.projection")
        rows.builder.begin(depths)
        _layer(rows, layer, span, stack, ())
    for _, depths in architecture.mtp[:1]:
        rows.builder.begin(depths)
        x = rows.gathered(rows.entering_norm((), local, width, "mtp.norm", stack.norm), tokens, width)
        _logits(rows, x, replace(architecture.head, tied=True), tokens, stack)


def _logits(rows: RowWriter, x: Flow, head: Head, tokens: float, stack: Stack) -> None:
    """Add the logits of `tokens`, split over the tensor-parallel group and, outside of training, gathered.

    A serving stack chooses a token by them.
    """
    width, vocabulary = stack.width, -(-head.vocabulary // rows.tensor)
    if head.transform:
        x = _transformed(rows, x, head, tokens, stack)
    if head.scaled:
        x = rows.each("mul_scalar", x, tokens, width, "words.scale")
    if stack.embedding.width != width:
        x = rows.linear(x, tokens, stack.embedding.width, width, "words.project")
        width = stack.embedding.width
    held = (0 if head.tied and rows.together else vocabulary * width) + (vocabulary if head.bias else 0)
    # Serving stacks and Megatron-LM pad the table, to 64 and 128 rows; here as far as the kernel changes by it.
    columns = vocabulary if rows.run.release.kernels is None else -(-vocabulary // _ALIGNED) * _ALIGNED
    x = rows.linear(x, tokens, columns, width, "words.logits", dtype=rows.head_dtype, parameters=held)
    if head.softcap:
        x = softcapped(rows, x, tokens, vocabulary, "words.softcap")
    if rows.run.mode != "training":
        x = rows.collective("all_gather", x, tokens, vocabulary * rows.tensor)
    if rows.run.loss:
        _loss(rows, x, tokens, vocabulary)
    if rows.rules.samples:
        rows.each("sample", x, tokens, head.vocabulary, "words.sample")


def _transformed(rows: RowWriter, x: Flow, head: Head, tokens: float, stack: Stack) -> Flow:
    """Add a linear layer, an activation and a norm before logits or labels, and return the norm's row."""
    width = stack.width
    x = rows.linear(x, tokens, width, width, "transform", bias=head.transform_bias)
    x = rows.activation(x, tokens, width, head.transform, "transform.activation")
    return rows.norm(x, tokens, width, "transform.norm", stack.norm)


def _loss(rows: RowWriter, x: Flow, tokens: float, vocabulary: float) -> None:
    """Add the cross entropy of the logits: in FP32 their copy and the softmax, or one kernel of two passes each way."""
    elements = tokens * vocabulary
    if rows.run.release.fused_loss:
        rows.add("memory", x, outputs=elements, saved=0.0, name="loss.fused", bytes=2.0 * elements * rows.size)
        return
    if rows.size != FP32_BYTES:
        moved = elements * (rows.size + FP32_BYTES)
        x = rows.add("memory", x, outputs=elements, saved=0.0, name="loss.copy", bytes=moved)
    rows.add("softmax", x, outputs=elements, name="loss.softmax", dtype="fp32", b=tokens, h=vocabulary)


_TENSOR = ("workload", "parallelism", "tensor")
_EXPERT = ("workload", "parallelism", "expert")
_CONTEXT = ("workload", "parallelism", "context")
_PIPELINE = ("workload", "parallelism", "pipeline")


def check(architecture: Architecture, run: Run) -> None:
    """Raise BadInput, naming the field, for an unsupported mode, too many tokens or stages, or what does not divide."""
    if run.mode in ("prefill", "decode") and not (architecture.generates or run.pooled):
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
    _dtype(run, mixed=bool(mixtures))
    # Rows can be cut before and after the layers too, but a stage that only embeds is none that anybody runs.
    if run.parallelism.pipeline > architecture.layers:
        refuse(_PIPELINE, f"stages hold whole layers, of which the model has {architecture.layers}")
    if run.parallelism.expert > 1 and not mixtures:
        refuse(_EXPERT, "the model has no experts")
    if run.parallelism.sequence:
        _tokens(architecture, run)
    if run.parallelism.context > 1:
        _shared_sequences(architecture, run)


def _dtype(run: Run, *, mixed: bool) -> None:
    """Refuse formats of experts' weights for a model without any (`mixed`), and training of weights in few bits."""
    if run.dtype in EXPERT_DTYPES and not mixed:
        refuse(("workload", "dtype"), f"{run.dtype} is of experts' weights, and the model has no experts")
    if run.mode == "training" and run.dtype in WEIGHT_ONLY_DTYPES and not run.adapter_rank:
        refuse(("workload", "dtype"), f"weights in {run.dtype} are not trained: send trainable, low-rank adapters")


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
    if spec.each.inner % (tensor * run.parallelism.expert_replicas // expert or 1):
        refuse(_TENSOR, f"must divide the {spec.each.inner} inner features of an expert")
    if spec.shared and spec.shared.inner % tensor:
        refuse(_TENSOR, f"must divide the {spec.shared.inner} inner features of the shared expert")


def _tokens(architecture: Architecture, run: Run) -> None:
    """Refuse sequence parallelism that does not divide the tokens."""
    for span in spans_of(architecture, run):
        if span is not None and span.tokens % run.parallelism.tensor:
            refuse(_TENSOR, f"must divide the {span.tokens:.0f} tokens of a device where sequence is true")
