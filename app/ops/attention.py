"""Attention, fused: `attention_prefill`, `attention_decode` and multi-head latent attention, `attention_mla`.

`context_length` C counts all keys, those of the Q new queries included. Causal: the query at position p sees min(p +
1, w) keys, w the window (0, or C and more: all). Pairs = sum of these over p = C - Q ... C - 1, which is half of Q C
for a whole prefill. FLOPs = 4 batch heads head_dim pairs (scores, and values; the softmax is left out, as in
FlashAttention, Dao 2023); bytes = Q + O + K and V of every key that some query sees, each once. Backward recomputes
the scores: five products for two (2.5 x FLOPs), and moves Q K V O dO in, dQ dK dV out.

Latent attention (DeepSeek-V2, 2024): of every key `latent_dim` + `rope_dim` numbers are kept, shared by all heads.
One query (decode) works on them directly, 2 (latent + rope) + 2 latent FLOPs a pair and head; more queries (prefill)
on keys and values expanded to `head_dim` per head, 2 (head + rope) + 2 head.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from app.ops.base import COMMON, Broken, Dim, Floats, Loops, Op, Products, Queries, Work
from app.tables.ops import ACTIVATION_DTYPES, DTYPE_BYTES, OUTPUT_BYTES, OpTable

BACKWARD_FLOPS = 2.5


class Reach(NamedTuple):
    """What the queries of one sequence see, float64 [n] each."""

    queries: Floats
    pairs: Floats  # (query, key)
    keys: Floats  # that any query sees


def _pairs_to(position: Floats, window: Floats) -> Floats:
    """Keys seen by all queries at the first `position` positions: sum of min(x, window)."""
    short = np.minimum(position, window)
    pairs: Floats = 0.5 * short * (short + 1.0) + (position - short) * window
    return pairs


def reach(table: OpTable) -> Reach:
    """Queries, pairs and keys of one sequence."""
    context, queries, window = (table.column(name) for name in ("context_length", "query_length", "window"))
    queries = np.where(np.isnan(queries), context, queries)
    window = np.where((window == 0) | (window > context), context, window)
    pairs = _pairs_to(context, window) - _pairs_to(context - queries, window)
    return Reach(queries, pairs, np.minimum(context, window + queries - 1.0))


def _or(given: Floats, default: Floats) -> Floats:
    chosen: Floats = np.where(np.isnan(given), default, given)
    return chosen


def _key_bytes(table: OpTable) -> Floats:
    """Bytes of an element of the KV cache; its dtype is the row's unless given."""
    code = _or(table.column("kv_dtype"), table.dtype.astype(np.float64))
    size: Floats = DTYPE_BYTES[code.astype(np.intp)]
    return size


def _shared(table: OpTable) -> Floats:
    """Heads of keys and values."""
    return _or(table.column("kv_heads"), table.column("heads"))


def _fused(table: OpTable, flops: Floats, queries: Floats, keys: Floats) -> Work:
    """Work from forward FLOPs, and elements that belong to queries and keys; forward writes one output per query."""
    back = table.column("backward")
    into, out = queries * DTYPE_BYTES[table.dtype], queries * OUTPUT_BYTES[table.dtype]
    read = keys * _key_bytes(table)
    moved = into + out + read + back * (into + out + read)
    return Work((1.0 + back * (BACKWARD_FLOPS - 1.0)) * flops, moved, moved)


def work(table: OpTable) -> Work:
    """Work of attention with keys and values per KV head."""
    queries, pairs, keys = reach(table)
    heads, batch, width = table.column("heads"), table.column("batch"), table.column("head_dim")
    shared = _shared(table)
    flops = 4.0 * batch * heads * width * pairs
    return _fused(table, flops, batch * heads * queries * width, 2.0 * batch * shared * keys * width)


def mla_work(table: OpTable) -> Work:
    """Work of latent attention."""
    queries, pairs, keys = reach(table)
    batch, heads = table.column("batch"), table.column("heads")
    latent, rope, width = (table.column(name) for name in ("latent_dim", "rope_dim", "head_dim"))
    decode = queries == 1
    scored, valued = np.where(decode, latent, width) + rope, np.where(decode, latent, width)
    flops = 2.0 * batch * heads * pairs * (scored + valued)
    kept = np.where(decode, latent + rope, heads * (2.0 * width + rope))
    return _fused(table, flops, batch * heads * queries * 0.5 * (scored + valued), batch * keys * kept)


def products(table: OpTable) -> Products:
    """Tiles of queries, per sequence and head: one tile loops over all its keys, which are not split."""
    queries = _or(table.column("query_length"), table.column("context_length"))
    width = table.column("head_dim")
    return Products(table.column("batch") * table.column("heads"), queries, width, width)


def decode_products(table: OpTable) -> Products:
    """Scores of the query heads that share a KV head, per sequence; keys are dealt to tiles (Flash-Decoding)."""
    heads, keys = table.column("heads"), reach(table).keys
    shared = _shared(table)
    return Products(table.column("batch") * shared, heads / shared, keys, table.column("head_dim"))


# Keys that a block of FlashAttention-2 reads at a turn, by how wide heads are at most (its `set_params_splitkv`).
_WIDTHS, _KEYS_OF_TURN = np.array([64.0, 128.0]), np.array([256.0, 128.0, 64.0])


def decode_loops(table: OpTable) -> Loops:
    """As FlashAttention-2 deals one query per sequence to blocks.

    Query heads that share a KV head are rows of one block, and its keys are dealt to more blocks where SMs would be
    idle (Flash-Decoding); with a window, and where no heads share one, each head is a block that is not cut.
    """
    heads, shared = table.column("heads"), _shared(table)
    context, window = table.column("context_length"), table.column("window")
    windowed = window > 0.0
    together = (heads > shared) & ~windowed
    keys = np.where(windowed, np.minimum(context, window), context)
    steps = np.ceil(keys / _KEYS_OF_TURN[np.searchsorted(_WIDTHS, table.column("head_dim"))])
    return Loops(table.column("batch") * np.where(together, shared, heads), steps, np.where(together, steps, 1.0))


# Queries of a tile, of all heads that share a KV head one after another, and clocks of an SM to begin and end one: of
# A100, B200 and L40S (docs/explanation/notebook.md).
_TILE_ROWS, _TILE_CLOCKS = 64.0, 6000.0


def queries_of(table: OpTable) -> Queries:
    """What `fill_tiles` takes."""
    return Queries(*(table.column(name) for name in Queries._fields))


def fill_tiles(queries: Queries, padding: Floats, clocks: Floats) -> None:
    """FLOPs that are done for each that is asked, and clocks of SMs besides, [n] each; compiled where it is used.

    A tile works on every key that one of its queries sees, and on all its rows; backward on as many tiles again.
    """
    for q in range(len(padding)):
        context, window = queries.context_length[q], queries.window[q]
        length = context if np.isnan(queries.query_length[q]) else queries.query_length[q]
        shared = queries.heads[q] if np.isnan(queries.kv_heads[q]) else queries.kv_heads[q]
        if window == 0 or window > context:
            window = context
        group = queries.heads[q] / shared
        tiles = np.ceil(length * group / _TILE_ROWS)
        span = min(length, max(_TILE_ROWS / group, 1.0))
        # The last query of a tile sees most: (span - 1) / 2 keys more than the mean one.
        asked = visited = 0.0
        for position, sign in ((context, 1.0), (context - length, -1.0)):
            short = min(position, window)
            asked += sign * (0.5 * short * (short + 1.0) + (position - short) * window)
            last, wide = position + 0.5 * (span - 1.0), window + span - 1.0
            short = min(last, wide)
            visited += sign * (0.5 * short * (short + 1.0) + (last - short) * wide)
        padding[q] = tiles * _TILE_ROWS / (length * group) * visited / asked
        clocks[q] = _TILE_CLOCKS * queries.batch[q] * shared * tiles * (1.0 + queries.backward[q])


def check(table: OpTable) -> list[Broken]:
    """KV heads divide the heads; new queries are part of the context."""
    heads, context = table.column("heads"), table.column("context_length")
    shared, queries = _shared(table), _or(table.column("query_length"), context)
    return [
        Broken("kv_heads must divide heads", heads % shared != 0, "kv_heads"),
        Broken("query_length exceeds context_length, which counts all keys", queries > context, "query_length"),
    ]


def check_decode(table: OpTable) -> list[Broken]:
    """One new query, and nothing to learn."""
    return [
        *check(table),
        Broken("decode has query_length 1", table.column("query_length") != 1, "query_length"),
        Broken("decode has no backward phase", table.column("backward") > 0, "backward"),
    ]


def _dims(query_length: Dim, *own: Dim) -> tuple[Dim, ...]:
    return (
        Dim("batch", "sequences"),
        Dim("heads", "query heads"),
        Dim("kv_heads", "heads of keys and values; absent: heads", default=np.nan),
        Dim("head_dim", "elements of a head"),
        query_length,
        Dim("context_length", "all keys, those of the new queries included"),
        Dim("window", "keys a query looks back on, itself included; 0: all", least=0.0, default=0.0),
        Dim("kv_dtype", "number format of the KV cache; absent: dtype", default=np.nan, choices=ACTIVATION_DTYPES),
        *own,
        *COMMON,
    )


_QUERIES = Dim("query_length", "new queries per sequence; absent: context_length", default=np.nan)
ATTENTION_OPS = (
    Op(
        "attention_prefill",
        "attention",
        _dims(_QUERIES),
        work,
        check=check,
        products=products,
        queries=queries_of,
    ),
    Op(
        "attention_decode",
        "attention",
        _dims(Dim("query_length", "1", default=1.0)),
        work,
        check=check_decode,
        products=decode_products,
        loops=decode_loops,
    ),
    Op(
        "attention_mla",
        "attention",
        _dims(
            _QUERIES,
            Dim("latent_dim", "compressed elements kept per key", default=512.0),
            Dim("rope_dim", "elements kept per key for the position", default=64.0, least=0.0),
        ),
        mla_work,
        check=check,
    ),
)
