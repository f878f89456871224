"""Rows of what a stack begins with, and of what runs beside its layers: further residual streams and inputs of layers.

A stack begins with tokens, image patches or frames of sound, positions, and what its layers share. Hyper-connections
(DeepSeek-V4) are residual streams that are read before each part of a layer and written after it. Gemma 3n and the
small Gemma 4 have inputs of every layer from a table of tokens, and alternating updates.
"""

from __future__ import annotations

from app.networks.transformers.architecture import AltUp, Attention, Embedding, Frames, LayerInputs, Stack
from app.networks.transformers.attention import Span
from app.networks.transformers.row_writer import Flow, RowWriter
from app.ops.hyper_connections import POST, PRE


def into_part(rows: RowWriter, x: Flow, tokens: float, width: float, streams: int, name: str) -> Flow:
    """Add the input of a part from the streams, with the weights that read, write and mix them; return its row."""
    local, columns = tokens / rows.split, streams * (streams + 2)
    return _connected(rows, x, (local, width, streams), PRE, f"{name}.streams_in", columns * (streams * width + 1) + 3)


def out_of_part(rows: RowWriter, x: Flow, tokens: float, width: float, streams: int, name: str) -> Flow:
    """Add a part's output into the mixed streams, and return their row."""
    return _connected(rows, x, (tokens / rows.split, width, streams), POST, f"{name}.streams_out", 0.0)


def joined(rows: RowWriter, tokens: float, width: float, streams: int) -> Flow:
    """Add the weighted sum of the streams of `tokens` after the last layer, and return its row."""
    return _connected(rows, (), (tokens, width, streams), PRE, "streams.sum", streams * (streams * width + 1) + 1)


def _connected(
    rows: RowWriter, x: Flow, sizes: tuple[float, float, int], part: float, name: str, parameters: float
) -> Flow:
    tokens, width, streams = sizes
    written = width if part == PRE else streams * width
    return rows.add(
        "hyper_connections",
        (*dict.fromkeys(x),),
        outputs=tokens * written,
        name=name,
        parameters=parameters,
        b=tokens,
        h=width,
        streams=streams,
        part=part,
    )


_ACTIVATION = "gelu_pytorch_tanh"


def looked_up_inputs(rows: RowWriter, x: Flow, spec: LayerInputs, stack: Stack, tokens: float) -> Flow:
    """Add the lookup of all layers' inputs, to which a projection of the embedding is added; return its row."""
    wide = spec.size * sum(repeats for _, repeats in stack.layers)
    vocabulary = -(-spec.vocabulary // rows.tensor)
    y = rows.add(
        "embedding", outputs=tokens * wide, saved=0.0, name="layer_inputs", parameters=vocabulary * wide, b=tokens,
        h=wide, vocabulary=vocabulary,
    )  # fmt: skip
    own = rows.summed(y, tokens, wide)
    y = rows.linear(x, tokens, wide, stack.width, "layer_inputs.projection", dtype=rows.dtype)
    y = rows.norm(y, tokens * wide / spec.size, spec.size, "layer_inputs.norm", "rms_norm")
    return rows.each("add", (*own, *y), tokens, wide, "layer_inputs.sum")


def fed_inputs(rows: RowWriter, x: Flow, spec: LayerInputs, stack: Stack, tokens: float) -> Flow:
    """Add a layer's own input, gated by the residual stream, to it; return the sum's row."""
    gate = rows.linear(x, tokens, spec.size, stack.width, "layer_input.gate")
    gate = rows.activation(gate, tokens, spec.size, _ACTIVATION, "layer_input.gelu")
    y = rows.each("mul", gate, tokens, spec.size, "layer_input.product")
    y = rows.linear(y, tokens, stack.width, spec.size, "layer_input.projection")
    y = rows.norm(y, tokens, stack.width, "layer_input.norm", stack.norm)
    return rows.each("add", (*x, *y), tokens, stack.width, "layer_input.sum")


def opened(rows: RowWriter, x: Flow, spec: AltUp, stack: Stack, tokens: float) -> Flow:
    """Add the projections of the embedding to the further streams, or of these to the output; return their row."""
    further = float(spec.streams - 1)
    return rows.linear(x, tokens, stack.width, stack.width, "streams", dtype=rows.dtype, count=further)


def predicted(rows: RowWriter, x: Flow, spec: AltUp, stack: Stack, tokens: float) -> Flow:
    """Add the router, and the prediction of all streams from each other; return the prediction's row."""
    n, width = spec.streams, stack.width
    routed = rows.norm(x, tokens, width, "altup.norm", stack.norm)
    routed = rows.linear(routed, tokens, n, width, "altup.router", dtype=rows.dtype)
    return _mixed(rows, (*x, *routed), (n, width), tokens, "altup.predicted", parameters=n**3)


def corrected(rows: RowWriter, x: Flow, spec: AltUp, stack: Stack, tokens: float) -> Flow:
    """Add the correction of all streams by what the layer made of one; return its row."""
    n, width = spec.streams, stack.width
    return _mixed(rows, x, (n, width), tokens, "altup.corrected", parameters=n * n + width)


def _mixed(rows: RowWriter, x: Flow, sizes: tuple[int, int], tokens: float, name: str, parameters: float) -> Flow:
    """Add one pass over all streams, which are read and written."""
    elements = tokens * sizes[0] * sizes[1]
    return rows.add(
        "memory", (*dict.fromkeys(x),), outputs=elements, name=name, parameters=parameters,
        bytes=2.0 * elements * rows.size,
    )  # fmt: skip


def low_rank_residual(rows: RowWriter, x: Flow, y: Flow, spec: AltUp, stack: Stack, tokens: float) -> Flow:
    """Add the learned low-rank residual (LAuReL) of attention's input `x` to its output `y`; return the sum's row."""
    low = rows.linear(x, tokens, spec.rank, stack.width, "laurel.down")
    z = rows.linear(low, tokens, stack.width, spec.rank, "laurel.up")
    z = rows.norm(z, tokens, stack.width, "laurel.norm", stack.norm)
    return rows.each("add", (*y, *z), tokens, stack.width, "laurel.sum")


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
            y = rows.add(
                "embedding", outputs=b * width, name=name, parameters=table * width, b=b, h=width, vocabulary=table
            )
            x = rows.each("add", (*x, *y), local, width, f"{name}.add")
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
    return rows.add(
        "embedding", outputs=tokens * spec.width, saved=0.0, name="words", parameters=held, b=tokens, h=spec.width,
        vocabulary=vocabulary,
    )  # fmt: skip


def _patched(rows: RowWriter, spec: Embedding, span: Span) -> Flow:
    """Add the patch convolution, a learned token in front, and learned positions."""
    patches, width = spec.patches, spec.width
    assert patches is not None
    held = patches.channels * patches.size**2 * width + width
    y = rows.add(
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
        y = rows.add("copy", y, outputs=tokens * width, name="class_token", parameters=width, b=tokens, h=width)
    positions = span.queries * width
    return rows.add("add", y, outputs=tokens * width, name="positions.add", parameters=positions, b=tokens, h=width)


def _heard(rows: RowWriter, frames: Frames, span: Span, width: float) -> Flow:
    """Add two convolutions over time, as products of each frame with its neighbours, and learned positions."""
    x: Flow = ()
    for name, count, taken in (("first", 2.0, 3.0 * frames.bands), ("second", 1.0, 3.0 * width)):
        b = count * span.tokens
        x = rows.linear(x, b, width, taken, f"frames.{name}", bias=True, dtype=rows.dtype)
        x = rows.activation(x, b, width, "gelu", f"frames.{name}_gelu")
    held = frames.count * width + rows.idle
    return rows.add(
        "add", x, outputs=span.tokens * width, name="positions.add", parameters=held, b=span.tokens, h=width
    )


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
    y = rows.add(
        "embedding", outputs=pairs * heads, name="bias", parameters=stack.relative * heads, b=pairs, h=heads,
        vocabulary=stack.relative,
    )  # fmt: skip
    if rows.eager:
        rows.each("add_scalar", y, span.batch * heads * span.queries, span.keys, "bias.mask")
