"""`attention_module`: an attention layer as a whole, from `hidden` features and back, as serving stacks measure it.

Layers whose attention is more than one kernel: projections, an indexer that selects keys, compression, attention, the
output projection, and the glue between them. `variant`:

mla   multi-head latent attention (DeepSeek-V2, 2024); `latent_dim` + `rope_dim` elements kept per key
dsa   the same on the `index_keys` keys per query that an indexer selects (DeepSeek-V3.2, GLM-5); where `index_heads` is
      0 the selection of an earlier layer is used again (GLM-5.2)
msa   grouped heads on selected blocks of keys (MiniMax-M3)
csa   DeepSeek-V4: keys that are values too, one head of `head_dim`: the last `window` as they are, and of one key for
      every `compression` tokens those that an indexer selects
hca   the same on all compressed keys; with `compression` 0 on the window alone

FLOPs = 2 tokens x weights + attention + indexer. Attention: 2 (key + value elements) a pair and head; mla and dsa work
on the kept elements in decode and on selected keys, else on expanded ones. Indexer: 2 index_heads index_dim a pair of
query and (compressed) key. Pairs are causal, at most `index_keys` a query where these are selected.
Bytes = weights + input and output + keys and values in the cache's format + the indexer's keys, of 8 bits and a scale.
Backward: 2.5 x FLOPs as of attention, and all bytes with their gradients.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from app.ops.attention import KV_DTYPE
from app.ops.attention_kernels import either, key_bytes, padded, passes
from app.ops.base import COMMON, Dim, Op, choice
from app.ops.figures import Broken, Prior, Ratio, Work
from app.tables.arrays import Bools, Floats
from app.tables.ops import DTYPE_BYTES, DTYPES, OUTPUT_BYTES, WEIGHT_BYTES, OpTable

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
    whole, most, single = np.floor(context / step), table.column("index_keys"), np.ones(table.kind.size)
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


# Query heads of an instruction of a tensor unit, and of a block of a sparse kernel (FlashMLA); queries of a block.
_INSTRUCTION_HEADS, _BLOCK_HEADS, _BLOCK_QUERIES = 16.0, 64.0, 128.0


class ModuleParts(NamedTuple):
    """Amounts of each part, float64 [n] each; 0 where a row has none. Backward has 2.5 times as much of all.

    one                modules: launches of kernels
    sequences          of prefill, whose tokens are more
    tokens             new ones
    features           elements of the input: glue
    projections, weights  products of tokens and weights, and elements of weights
    scores             pairs of query and key x heads x elements of both
    scores_16, scores_64  the same on heads per KV head padded to whole instructions and blocks
    blocks             the same of all keys and whole blocks of queries, on expanded keys
    index_scores, index_pairs  the same of the indexer, and its pairs
    gathered           selected keys of all queries
    cache, index_cache  elements read of keys and values, by bytes of their format, and of the indexer's keys
    places             keys of all sequences, of which kernels look up the places in the cache
    expansion, expanded  products and results of expanding kept elements to keys and values
    chain              keys of one sequence of decode, which a kernel that does not split them reads one after the other
    """

    one: Floats
    sequences: Floats
    tokens: Floats
    features: Floats
    projections: Floats
    weights: Floats
    scores: Floats
    scores_16: Floats
    scores_64: Floats
    blocks: Floats
    index_scores: Floats
    index_pairs: Floats
    gathered: Floats
    cache: Floats
    index_cache: Floats
    places: Floats
    expansion: Floats
    expanded: Floats
    chain: Floats


def parts(table: OpTable) -> ModuleParts:
    """Return the parts of modules."""
    s, seen, batch, queries = sizes(table), attended(table), table.column("batch"), queries_of(table)
    context, most, held = table.column("context_length"), table.column("index_keys"), weights(s)
    tokens, places = batch * queries, batch * context
    on_kept, prefill = absorbed(table), queries > 1
    width, dense = pair_width(s, on_kept), ~on_kept
    pairs, index_pairs = batch * seen.pairs * width, batch * seen.index_pairs
    kv_heads = np.where(s.variant == MSA, s.kv_heads, 1.0)
    shared = s.heads / kv_heads
    expanded = places * s.heads * (s.head_dim + s.value_dim) * dense
    once = ModuleParts(
        np.ones(table.kind.size),
        batch * prefill,
        tokens,
        tokens * s.hidden,
        tokens * held,
        held,
        pairs * s.heads,
        pairs * kv_heads * padded(shared, _INSTRUCTION_HEADS),
        pairs * kv_heads * padded(shared, _BLOCK_HEADS),
        batch * padded(queries, _BLOCK_QUERIES) * context * width * s.heads * (dense & prefill),
        index_pairs * s.index_heads * s.index_dim,
        index_pairs,
        tokens * np.minimum(most, context),
        batch * seen.keys * kept(s) * key_bytes(table),
        batch * seen.index_keys * s.index_dim,
        places,
        expanded * s.latent_dim,
        expanded,
        seen.keys * ~prefill,
    )
    times = passes(table)
    return ModuleParts(*(part * times for part in once))


def check(table: OpTable) -> list[Broken]:
    """New queries are part of the context, and heads of keys divide the heads."""
    queries, context = table.column("query_length"), table.column("context_length")
    latent, kind = table.column("latent_dim"), table.column("variant")
    return [
        Broken("query_length exceeds context_length, which counts all keys", queries > context, "query_length"),
        Broken("kv_heads must divide heads", table.column("heads") % table.column("kv_heads") != 0, "kv_heads"),
        Broken("mla and dsa need latent_dim", (kind <= DSA) & (latent == 0), "latent_dim"),
    ]


def kind_class(table: OpTable) -> Floats:
    """Code of the kind of each row, [n]."""
    return table.column("variant")


def _optional(name: str, meaning: str) -> Dim:
    return Dim(name, meaning, least=0.0, default=0.0)


ATTENTION_MODULE = Op(
    "attention_module",
    "attention",
    (
        Dim("batch", "sequences"),
        Dim("heads", "query heads"),
        Dim("kv_heads", "heads of keys and values of a layer without latent keys", default=1.0),
        Dim("head_dim", "elements of a head's key, without those of rope_dim"),
        Dim("value_dim", "elements of a head's value"),
        Dim(
            "query_length", "new queries per sequence; absent: context_length", default=np.nan, absent="context_length"
        ),
        Dim("context_length", "all keys, those of the new queries included"),
        Dim("window", "last keys that are seen as they are (csa, hca); 0: all", least=0.0, default=0.0),
        KV_DTYPE,
        Dim("hidden", "features in and out"),
        _optional("latent_dim", "compressed elements kept per key (mla, dsa)"),
        _optional("rope_dim", "elements kept per key for the position (mla, dsa)"),
        _optional("query_rank", "features that queries are projected through; 0: none"),
        _optional("output_rank", "features that each group of heads is projected through after attention; 0: none"),
        Dim("output_groups", "groups of heads of output_rank", default=1.0, feature="unseen"),
        _optional("index_heads", "heads of the indexer; 0: none, or an earlier layer's selection"),
        _optional("index_dim", "elements of an indexer's head"),
        _optional("index_keys", "most keys that a query attends to; 0: all"),
        _optional("compression", "tokens per compressed key (csa, hca); 0: no compressed keys"),
        choice("variant", "how keys are kept and selected", KINDS, MLA, "class"),
        *COMMON,
    ),
    work,
    check=check,
    dtypes=DTYPES,
    prior=Prior.of("attention_module"),
    ratios=(
        Ratio(("batch", "heads")),
        Ratio(("batch", "query_length")),
        Ratio(("query_length",), ("context_length",)),
        Ratio(("batch", "context_length")),
    ),
    kernel_class=kind_class,
    interval_apart=True,
    configuration=("heads", "hidden", "head_dim", "latent_dim"),
    few_configurations=True,
    parts=parts,
    part_names=ModuleParts._fields,
    saves=("input", "output"),
    example={
        "batch": 8, "heads": 16, "head_dim": 128, "value_dim": 128, "context_length": 4096, "hidden": 7168,
        "latent_dim": 512, "rope_dim": 64, "query_rank": 1536,
    },
)  # fmt: skip
ATTENTION_MODULE_OPS = (ATTENTION_MODULE,)
