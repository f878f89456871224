"""`attention_mixed`: attention of a chunk of one prompt beside decodes, as serving stacks batch them in one launch.

The chunk's `query_length` new queries see `context_length` keys, theirs included; each of `decodes` sequences has one
new query that sees `decode_context` keys. FLOPs and bytes are those of attention_prefill and attention_decode together
(app.ops.attention). The launch takes longer than either: kernels that hold a chunk do not split the decodes' keys over
idle SMs.
"""

from __future__ import annotations

import numpy as np

from app.ops.attention import KV_DTYPE, WINDOW
from app.ops.attention_tiles import attended, key_bytes, shared_heads
from app.ops.base import COMMON, Dim, Op
from app.ops.figures import Broken, Ratio, Work
from app.ops.prior import Prior
from app.tables.arrays import Floats
from app.tables.ops import DTYPE_BYTES, OUTPUT_BYTES, OpTable


def _decoded_keys(table: OpTable) -> Floats:
    """Keys that the new query of a decode sees, [n]."""
    context, window = table.column("decode_context"), table.column("window")
    return np.where((window == 0) | (window > context), context, window)


def work(table: OpTable) -> Work:
    """Work of the chunk and of the decodes."""
    queries, pairs, keys = attended(table)
    decodes, decoded = table.column("decodes"), _decoded_keys(table)
    heads, width = table.column("heads"), table.column("head_dim")
    flops = 4.0 * heads * width * (pairs + decodes * decoded)
    rows = (queries + decodes) * heads * width * (DTYPE_BYTES[table.dtype] + OUTPUT_BYTES[table.dtype])
    moved = rows + 2.0 * shared_heads(table) * width * key_bytes(table) * (keys + decodes * decoded)
    return Work(flops, moved, moved)


def check(table: OpTable) -> list[Broken]:
    """KV heads divide the heads; the chunk is part of its context; nothing is learned."""
    heads, context, queries = (table.column(name) for name in ("heads", "context_length", "query_length"))
    return [
        Broken("kv_heads must divide heads", heads % shared_heads(table) != 0, "kv_heads"),
        Broken("query_length exceeds context_length, which counts all keys", queries > context, "query_length"),
        Broken("a mixed batch has no backward phase", table.column("backward") > 0, "backward"),
    ]


ATTENTION_MIXED = Op(
    "attention_mixed",
    "attention",
    (
        Dim("heads", "query heads"),
        Dim("kv_heads", "heads of keys and values; absent: heads", default=np.nan, absent="heads"),
        Dim("head_dim", "elements of a head"),
        Dim("query_length", "new queries of the chunk"),
        Dim("context_length", "keys of the chunk's prompt, those of its queries included"),
        Dim("decodes", "sequences that decode beside it"),
        Dim("decode_context", "keys that each of them sees, its own included"),
        WINDOW,
        KV_DTYPE,
        *COMMON,
    ),
    work,
    check=check,
    prior=Prior.of("attention_mixed"),
    ratios=(
        Ratio(("decodes", "kv_heads")),
        Ratio(("heads",), ("kv_heads",)),
        Ratio(("query_length",), ("context_length",)),
        Ratio(("decodes", "kv_heads", "decode_context", "head_dim")),
        Ratio(("query_length", "heads", "context_length", "head_dim")),
    ),
    waits=True,
    interval_apart=True,
    configuration=("heads", "kv_heads", "head_dim", "window"),
    backward=(),
    example={
        "heads": 32,
        "kv_heads": 8,
        "head_dim": 128,
        "query_length": 512,
        "context_length": 2048,
        "decodes": 32,
        "decode_context": 2048,
    },
)
