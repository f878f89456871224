"""Rows of hyper-connections: residual streams that are read before each part of a layer and written after it."""

from __future__ import annotations

from app.graphs.transformers.row_writer import Flow, RowWriter
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
