"""Rows of further streams and inputs of layers: hyper-connections (DeepSeek-V4), and those of Gemma 3n and 4.

Hyper-connections are residual streams that are read before each part of a layer and written after it. Gemma 3n and the
small Gemma 4 have inputs of every layer from a table of tokens, and alternating updates.
"""

from __future__ import annotations

from app.networks.transformers.architecture import AltUp, LayerInputs, Stack
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
    row = rows.add(
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
    return (row,)


_ACTIVATION = "gelu_pytorch_tanh"


def looked_up_inputs(rows: RowWriter, x: Flow, spec: LayerInputs, stack: Stack, tokens: float) -> Flow:
    """Add the lookup of all layers' inputs, to which a projection of the embedding is added; return its row."""
    wide = spec.size * sum(repeats for _, repeats in stack.layers)
    vocabulary = -(-spec.vocabulary // rows.tensor)
    row = rows.add(
        "embedding", outputs=tokens * wide, saved=0.0, name="layer_inputs", parameters=vocabulary * wide, b=tokens,
        h=wide, vocabulary=vocabulary,
    )  # fmt: skip
    own = rows.summed((row,), tokens, wide)
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
    row = rows.add(
        "memory", (*dict.fromkeys(x),), outputs=elements, name=name, parameters=parameters,
        bytes=2.0 * elements * rows.size,
    )  # fmt: skip
    return (row,)


def low_rank_residual(rows: RowWriter, x: Flow, y: Flow, spec: AltUp, stack: Stack, tokens: float) -> Flow:
    """Add the learned low-rank residual (LAuReL) of attention's input `x` to its output `y`; return the sum's row."""
    low = rows.linear(x, tokens, spec.rank, stack.width, "laurel.down")
    z = rows.linear(low, tokens, stack.width, spec.rank, "laurel.up")
    z = rows.norm(z, tokens, stack.width, "laurel.norm", stack.norm)
    return rows.each("add", (*y, *z), tokens, stack.width, "laurel.sum")
