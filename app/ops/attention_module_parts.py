"""Parts of an `attention_module`: what the times of its kernels are in proportion to."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from app.ops.attention_module_work import MSA, absorbed, attended, kept, pair_width, queries_of, sizes, weights
from app.ops.attention_tiles import key_bytes, padded, passes
from app.tables.arrays import Floats
from app.tables.ops import OpTable

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
        np.ones(len(table)),
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
