"""Parts of latent attention, `attention_mla`: what the times of its kernels are in proportion to."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from app.ops.attention_tiles import attended, padded, passes
from app.tables.arrays import Floats
from app.tables.ops import OpTable

# Query heads of an instruction of a tensor unit, and of blocks; queries of a block.
_INSTRUCTION_HEADS, _BLOCK_HEADS, _LARGE_BLOCK_HEADS, _BLOCK_QUERIES = 16.0, 64.0, 128.0, 128.0


class LatentParts(NamedTuple):
    """Amounts of each part, float64 [n] each; 0 where a row has none. Backward has 2.5 times as much of all.

    one                kernels: launches
    sequences          of prefill, whose tokens are more
    tokens             new ones
    tasks              sequences x heads
    operands           elements of queries and outputs
    scores             pairs of query and key x heads x elements of both
    scores_16, scores_64, scores_128  the same on heads padded to whole instructions and blocks
    blocks             the same of all keys and whole blocks of queries, on expanded keys
    cache, expanded    elements read of kept, or of expanded, keys and values
    places             keys of all sequences, of which kernels look up the places in the cache
    chain              keys of one sequence of decode, which a kernel that does not split them reads one after the other
    """

    one: Floats
    sequences: Floats
    tokens: Floats
    tasks: Floats
    operands: Floats
    scores: Floats
    scores_16: Floats
    scores_64: Floats
    scores_128: Floats
    blocks: Floats
    cache: Floats
    expanded: Floats
    places: Floats
    chain: Floats


def latent_parts(table: OpTable) -> LatentParts:
    """Return the parts of latent attention."""
    queries, pairs, keys = attended(table)
    batch, heads, context = table.column("batch"), table.column("heads"), table.column("context_length")
    latent, rope, head = (table.column(name) for name in ("latent_dim", "rope_dim", "head_dim"))
    prefill = queries > 1
    width = np.where(prefill, 2.0 * head, 2.0 * latent) + rope
    tokens, scores = batch * queries, batch * pairs * width
    once = LatentParts(
        np.ones(len(table)),
        batch * prefill,
        tokens,
        batch * heads,
        tokens * heads * width,
        scores * heads,
        scores * padded(heads, _INSTRUCTION_HEADS),
        scores * padded(heads, _BLOCK_HEADS),
        scores * padded(heads, _LARGE_BLOCK_HEADS),
        batch * padded(queries, _BLOCK_QUERIES) * context * width * heads * prefill,
        batch * keys * (latent + rope),
        batch * keys * heads * (2.0 * head + rope) * prefill,
        batch * context,
        keys * ~prefill,
    )
    times = passes(table)
    return LatentParts(*(part * times for part in once))
