"""Work of `attention_module`, an attention layer as a whole, from `hidden` features and back.

FLOPs = 2 tokens x weights + attention + indexer. Attention: 2 (key + value elements) a pair and head; mla and dsa work
on the kept elements in decode and on selected keys, else on expanded ones. Indexer: 2 index_heads index_dim a pair of
query and (compressed) key. Pairs are causal, at most `index_keys` a query where these are selected.
Bytes = weights + input and output + keys and values in the cache's format + the indexer's keys, of 8 bits and a scale.
Backward: 2.5 x FLOPs as of attention, and all bytes with their gradients.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from app.ops.attention_tiles import either, key_bytes, passes
from app.ops.figures import Work
from app.tables.arrays import Bools, Floats
from app.tables.ops import DTYPE_BYTES, OUTPUT_BYTES, WEIGHT_BYTES, OpTable

KINDS = ("mla", "dsa", "msa", "csa", "hca")
MLA, DSA, MSA, CSA, HCA = (float(code) for code in range(len(KINDS)))
# Bytes of the indexer's key per element: FP8, and an FP32 scale per 128 (DeepSeek-V3.2).
INDEX_BYTES = 1.0 + 4.0 / 128.0


class Sizes(NamedTuple):
    """Sizes of a layer on one device, numbers or float64 [n] each, as the operator's fields of these names."""

    variant: Any
    hidden: Any
    heads: Any
    kv_heads: Any
    head_dim: Any
    value_dim: Any
    latent_dim: Any
    rope_dim: Any
    query_rank: Any
    output_rank: Any
    output_groups: Any
    index_heads: Any
    index_dim: Any
    compression: Any


def weights(s: Sizes) -> Any:
    """Elements of all matrices of a layer, by the sum of its kinds' formulas, each multiplied by 0 or 1."""
    latent, compressed = s.variant <= DSA, s.variant >= CSA
    query = s.heads * (s.head_dim + latent * s.rope_dim)
    queries = (s.query_rank > 0) * s.query_rank * (s.hidden + query) + (s.query_rank == 0) * s.hidden * query
    kept = s.hidden * (s.latent_dim + s.rope_dim) + s.latent_dim * s.heads * (s.head_dim + s.value_dim)
    grouped = s.hidden * s.kv_heads * (s.head_dim + s.value_dim)
    values = s.heads * s.value_dim
    out = (s.output_rank == 0) * values * s.hidden + s.output_rank * (values + s.output_groups * s.hidden)
    overlap = 1.0 + (s.variant == CSA)  # windows of compression overlap, so each key has two candidates
    shrink = compressed * (s.compression > 0) * 2.0 * s.hidden * overlap * s.head_dim
    keys = compressed * s.hidden * s.head_dim + latent * kept + (s.variant == MSA) * grouped
    return queries + keys + out + shrink + _indexer(s)


def _indexer(s: Sizes) -> Any:
    """Elements of the indexer's matrices: queries, weights of its heads, and keys, which csa compresses too."""
    source = (s.query_rank > 0) * s.query_rank + (s.query_rank == 0) * s.hidden
    scale = (s.variant != MSA) * s.hidden * s.index_heads
    keys = s.hidden * s.index_dim * (1.0 + 3.0 * (s.variant == CSA))
    return (s.index_heads > 0) * (source * s.index_heads * s.index_dim + scale + keys)


def sizes(table: OpTable) -> Sizes:
    """Return the sizes of each row's layer."""
    return Sizes(*(table.column(name) for name in Sizes._fields))


def _pairs_to(position: Floats, most: Floats, step: Floats) -> Floats:
    """Pairs of the first `position` queries with keys of `step` tokens each, at most `most` a query, [n]."""
    keys = np.minimum(np.floor(position / step), most)
    pairs: Floats = 0.5 * step * keys * (keys - 1.0) + keys * (position - keys * step + 1.0)
    return pairs


def _pairs(context: Floats, queries: Floats, most: Floats, step: Floats) -> Floats:
    return _pairs_to(context, most, step) - _pairs_to(context - queries, most, step)


class Attended(NamedTuple):
    """Per sequence, float64 [n]: pairs of query and key that attend; keys read; pairs and keys of the indexer."""

    pairs: Floats
    keys: Floats
    index_pairs: Floats
    index_keys: Floats


def attended(table: OpTable) -> Attended:
    """Counts of one sequence of each row."""
    context, queries, window = table.column("context_length"), queries_of(table), table.column("window")
    compressed, ratio = table.column("variant") >= CSA, table.column("compression")
    step = np.where(compressed & (ratio > 0), ratio, 1.0)
    # Keys that can be selected from: tokens, or one for every `step` of them.
    whole, most, single = np.floor(context / step), table.column("index_keys"), np.ones(len(table))
    most = np.where((most > 0) & (most < whole), most, whole)
    chosen, keys = _pairs(context, queries, most, step), np.minimum(whole, most * queries)
    near = np.where(window > 0, np.minimum(window, context), context)
    raw, last = _pairs(context, queries, near, single), np.minimum(context, near + queries - 1.0)
    none = compressed & (ratio == 0)
    indexed = table.column("index_heads") > 0
    return Attended(
        np.where(none, raw, chosen + compressed * raw),
        np.where(none, last, keys + compressed * last),
        np.where(indexed, _pairs(context, queries, whole, step), 0.0),
        np.where(indexed, whole, 0.0),
    )


def queries_of(table: OpTable) -> Floats:
    """New queries per sequence, [n]."""
    return either(table.column("query_length"), table.column("context_length"))


def absorbed(table: OpTable) -> Bools:
    """Whether attention works on the kept elements themselves, bool [n]; else on keys and values expanded from them."""
    context, most = table.column("context_length"), table.column("index_keys")
    on_kept: Bools = (table.column("variant") <= DSA) & ((queries_of(table) == 1) | ((most > 0) & (most < context)))
    return on_kept


def pair_width(s: Sizes, on_kept: Bools) -> Floats:
    """Elements of key and value that a pair and head multiplies, [n]; `on_kept` as `absorbed`."""
    scored = np.where(on_kept, s.latent_dim, s.head_dim) + (s.variant <= DSA) * s.rope_dim
    width: Floats = scored + np.where(on_kept, s.latent_dim, s.value_dim)
    return width


def kept(s: Sizes) -> Any:
    """Elements in the cache per key."""
    grouped = np.where(s.variant == MSA, 2.0 * s.kv_heads, 1.0) * s.head_dim
    return np.where(s.variant <= DSA, s.latent_dim + s.rope_dim, grouped)


def work(table: OpTable) -> Work:
    """Work of whole layers."""
    s, seen, batch = sizes(table), attended(table), table.column("batch")
    queries, width = queries_of(table), pair_width(s, absorbed(table))
    held, tokens = weights(s), batch * queries
    flops = 2.0 * tokens * held + 2.0 * batch * s.heads * seen.pairs * width
    flops = flops + 2.0 * batch * seen.index_pairs * s.index_heads * s.index_dim
    cached = batch * (seen.keys * kept(s) * key_bytes(table) + seen.index_keys * s.index_dim * INDEX_BYTES)
    ends = tokens * s.hidden * (DTYPE_BYTES[table.dtype] + OUTPUT_BYTES[table.dtype])
    back = table.column("backward")
    moved = (1.0 + back) * (held * WEIGHT_BYTES[table.dtype] + cached + ends)
    return Work(passes(table) * flops, moved, moved)
