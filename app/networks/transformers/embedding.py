"""Rows of what a stack begins with: tokens, image patches or frames of sound, positions, and what layers share."""

from __future__ import annotations

from app.networks.transformers.architecture import Attention, Embedding, Frames, Stack
from app.networks.transformers.attention import Span
from app.networks.transformers.residual_streams import looked_up_inputs, opened
from app.networks.transformers.row_writer import Flow, RowWriter


def embedded(rows: RowWriter, stack: Stack, span: Span) -> None:
    """Add the embedding of tokens or patches, positions and segments, as a block of its own."""
    spec, tokens = stack.embedding, span.tokens
    local, width = tokens / rows.split, stack.width
    if spec.frames:
        x = _heard(rows, spec.frames, span, width)
    elif spec.patches:
        x = _patched(rows, spec, span)
    else:
        x = rows.summed(_looked_up(rows, spec, tokens), tokens, spec.width)
    if spec.width != width:
        x = rows.linear(x, local, width, spec.width, "embedding.project")
    for name, table in (("segments", spec.segments), ("positions", spec.positions)):
        if table:
            b = span.queries if name == "positions" else local
            row = rows.add(
                "embedding", outputs=b * width, name=name, parameters=table * width, b=b, h=width, vocabulary=table
            )
            x = rows.each("add", (*x, row), local, width, f"{name}.add")
    if spec.scaled:
        x = rows.each("mul_scalar", x, local, width, "embedding.scale")
    if stack.layer_inputs:
        looked_up_inputs(rows, x, stack.layer_inputs, stack, tokens)
    if stack.altup:
        opened(rows, x, stack.altup, stack, local)
    if spec.norm:
        x = rows.norm(x, local, width, "embedding.norm", stack.norm)
    if spec.drops:
        rows.dropout(x, local, width)
    if stack.relative:
        _relative_bias(rows, stack, span)


def _looked_up(rows: RowWriter, spec: Embedding, tokens: float) -> Flow:
    """Add the token lookup, in a table split over the tensor-parallel group and padded as Megatron does."""
    vocabulary = -(-spec.vocabulary // rows.tensor)
    held = (0.0 if spec.shared and rows.together else vocabulary * spec.width) + rows.idle
    row = rows.add(
        "embedding", outputs=tokens * spec.width, saved=0.0, name="words", parameters=held, b=tokens, h=spec.width,
        vocabulary=vocabulary,
    )  # fmt: skip
    return (row,)


def _patched(rows: RowWriter, spec: Embedding, span: Span) -> Flow:
    """Add the patch convolution, a learned token in front, and learned positions."""
    patches, width = spec.patches, spec.width
    assert patches is not None
    held = patches.channels * patches.size**2 * width + width
    row = rows.add(
        "conv2d",
        outputs=span.batch * patches.count * width,
        name="patches",
        parameters=held,
        b=span.batch,
        in_channels=patches.channels,
        out_channels=width,
        kernel_size_height=patches.size,
        kernel_size_width=patches.size,
        stride_height=patches.size,
        stride_width=patches.size,
        input_size_height=patches.image_size,
        input_size_width=patches.image_size,
    )
    tokens = span.tokens
    if patches.marked:
        row = rows.add("copy", (row,), outputs=tokens * width, name="class_token", parameters=width, b=tokens, h=width)
    positions = span.queries * width
    row = rows.add("add", (row,), outputs=tokens * width, name="positions.add", parameters=positions, b=tokens, h=width)
    return (row,)


def _heard(rows: RowWriter, frames: Frames, span: Span, width: float) -> Flow:
    """Add two convolutions over time, as products of each frame with its neighbours, and learned positions."""
    x: Flow = ()
    for name, count, taken in (("first", 2.0, 3.0 * frames.bands), ("second", 1.0, 3.0 * width)):
        b = count * span.tokens
        x = rows.linear(x, b, width, taken, f"frames.{name}", bias=True, dtype=rows.dtype)
        x = rows.activation(x, b, width, "gelu", f"frames.{name}_gelu")
    held = frames.count * width + rows.idle
    row = rows.add("add", x, outputs=span.tokens * width, name="positions.add", parameters=held, b=span.tokens, h=width)
    return (row,)


# Operators with which eager computes the bucket of every pair of query and key (T5).
_BUCKETS = ("mul_scalar", "add_scalar", "div_scalar", "div_scalar", "mul_scalar", "add_scalar", "copy", "add")


def _relative_bias(rows: RowWriter, stack: Stack, span: Span) -> None:
    """Add the relative position bias per head (T5), with the mask added once for all layers."""
    first = stack.layers[0][0].attention
    assert isinstance(first, Attention)
    heads = first.heads / rows.tensor
    if rows.eager:
        for op in _BUCKETS:
            rows.each(op, (), span.queries, span.keys, f"bias.{op}")
    pairs = span.queries * span.keys
    row = rows.add(
        "embedding", outputs=pairs * heads, name="bias", parameters=stack.relative * heads, b=pairs, h=heads,
        vocabulary=stack.relative,
    )  # fmt: skip
    if rows.eager:
        rows.each("add_scalar", (row,), span.batch * heads * span.queries, span.keys, "bias.mask")
