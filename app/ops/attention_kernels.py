"""Kernels of attention: counts of attended keys, tiles of queries, blocks of decode, parts of latent attention.

Causal: the query at position p attends to min(p + 1, w) keys, w the window (0, or C and more: all). Prefill deals tiles
of queries to blocks, which loop over keys (FlashAttention-2, Dao 2023). Kernels that decode give a block the query
heads that share a KV head, and deal its keys to more blocks where SMs would be idle (Flash-Decoding). TensorRT-LLM has
another kernel, masked multi-head attention, where heads share no KV head or too many: each query head is a block that
reads the keys and values of its KV head again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from app.coefficients import Coefficients
from app.ops.figures import Costing, LibraryCosts, Loops, Products, Queries
from app.stacks.libraries import LIBRARIES, LIBRARY_CODE, kernel_fact
from app.tables.arrays import Bools, Floats
from app.tables.ops import DTYPE_BYTES, OpTable

_FITTED = Coefficients("operators")

# Backward computes the scores again: five products for two.
_BACKWARD_FLOPS = 2.5


class Attended(NamedTuple):
    """Counts of one sequence, float64 [n] each: queries, (query, key) pairs, and keys that any query attends to."""

    queries: Floats
    pairs: Floats
    keys: Floats


def _pairs_to(position: Floats, window: Floats) -> Floats:
    """Pairs of the queries at the first `position` positions, float64 [n]: sum of min(x, window)."""
    short = np.minimum(position, window)
    pairs: Floats = 0.5 * short * (short + 1.0) + (position - short) * window
    return pairs


def attended(table: OpTable) -> Attended:
    """Queries, pairs and keys of one sequence of each row."""
    context, queries, window = (table.column(name) for name in ("context_length", "query_length", "window"))
    queries = np.where(np.isnan(queries), context, queries)
    window = np.where((window == 0) | (window > context), context, window)
    pairs = _pairs_to(context, window) - _pairs_to(context - queries, window)
    return Attended(queries, pairs, np.minimum(context, window + queries - 1.0))


def either(given: Floats, default: Floats) -> Floats:
    """`given` [n], with `default` [n] in place of NaN."""
    chosen: Floats = np.where(np.isnan(given), default, given)
    return chosen


def passes(table: OpTable) -> Floats:
    """FLOPs of a row over those of its forward pass, float64 [n]."""
    over: Floats = 1.0 + table.column("backward") * (_BACKWARD_FLOPS - 1.0)
    return over


def padded(count: Floats, block: float) -> Floats:
    """Return counts [n] rounded up to whole blocks."""
    whole: Floats = np.ceil(count / block) * block
    return whole


def shared_heads(table: OpTable) -> Floats:
    """Heads of keys and values, float64 [n]; as many as query heads unless given."""
    return either(table.column("kv_heads"), table.column("heads"))


def key_bytes(table: OpTable) -> Floats:
    """Bytes of an element of the KV cache; its dtype is the row's unless given."""
    code = either(table.column("kv_dtype"), table.dtype.astype(np.float64))
    size: Floats = DTYPE_BYTES[code.astype(np.intp)]
    return size


def products(table: OpTable) -> Products:
    """Tiles of queries, per sequence and head: one tile loops over all its keys, which are not split."""
    queries = either(table.column("query_length"), table.column("context_length"))
    width = table.column("head_dim")
    return Products(table.column("batch") * table.column("heads"), queries, width, width)


# Queries of a tile, of all heads that share a KV head one after another, and clocks of an SM to begin and end one: of
# A100, B200 and L40S (docs/explanation/notebook.md).
_TILE_ROWS, _TILE_CLOCKS = 64.0, _FITTED.number("prefill_tile_clocks")


def queries_of(table: OpTable) -> Queries:
    """Fields of attention rows as `fill_tiles` takes them."""
    return Queries(*(table.column(name) for name in Queries._fields))


def fill_tiles(queries: Queries, padding: Floats, clocks: Floats) -> None:
    """Fill `padding` [n], FLOPs computed per FLOP of the definition, and `clocks` [n], SM clocks per row besides.

    A tile computes every key that one of its queries attends to, and all its rows; backward takes as many tiles again.
    Compiled where it is used.
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
        # The last query of a tile attends to most keys: (span - 1) / 2 more than the mean one.
        needed = visited = 0.0
        for position, sign in ((context, 1.0), (context - length, -1.0)):
            short = min(position, window)
            needed += sign * (0.5 * short * (short + 1.0) + (position - short) * window)
            last, wide = position + 0.5 * (span - 1.0), window + span - 1.0
            short = min(last, wide)
            visited += sign * (0.5 * short * (short + 1.0) + (last - short) * wide)
        padding[q] = tiles * _TILE_ROWS / (length * group) * visited / needed
        clocks[q] = _TILE_CLOCKS * queries.batch[q] * shared * tiles * (1.0 + queries.backward[q])


# Keys that a block of FlashAttention-2 reads at a turn, by how wide heads are at most (its `set_params_splitkv`).
_WIDTHS, _KEYS_OF_TURN = np.array([64.0, 128.0]), np.array([256.0, 128.0, 64.0])
# SM clocks of a block per KV head: to begin and end, and per element of a head, by library; "" of all others.
_BLOCK_CLOCKS = _FITTED.tuples_by_name("decode_block_clocks")
_FA2, _FLASHINFER, _ALONE = (LIBRARY_CODE[name] for name in ("flash-attention-2", "flashinfer", "trtllm-fp8"))
_CLOCKS = np.array([_BLOCK_CLOCKS.get(name, _BLOCK_CLOCKS[""]) for name in LIBRARIES])
# The same of a query head's block in masked multi-head attention, and the bytes that it reads again per clock.
_MASKED_BLOCK_CLOCKS, _MASKED_ELEMENT_CLOCKS, _MASKED_BYTES_PER_CLOCK = _FITTED.each(
    "masked_block_clocks", "masked_element_clocks", "masked_bytes_per_clock"
)
# FlashInfer's kernels without tensor units, for fewer query heads per KV head than this on caches of 16 bits: SM clocks
# of a query head's block.
_FEW_TOGETHER, _FEW_CLOCKS = 4.0, _FITTED.number("flashinfer_few_clocks")
# Bytes per clock of a block that reads all keys of a sequence alone, as those of "trtllm-fp8".
_ALONE_BYTES_PER_CLOCK = _FITTED.number("alone_bytes_per_clock")
# Queries that a block of FlashAttention-2 has place for in shared memory, beside keys and values of a turn.
_QUERIES_OF_BLOCK = 64.0
# Most query heads per KV head for which stacks with masked multi-head attention compute them together.
_MOST_TOGETHER = 32.0
_MASKED = [float(code) for code, masks in enumerate(kernel_fact("masked_decode")) if masks]


def decode_products(table: OpTable) -> Products:
    """Scores of the query heads that share a KV head, per sequence; keys are dealt to tiles (Flash-Decoding)."""
    heads, keys = table.column("heads"), attended(table).keys
    shared = shared_heads(table)
    return Products(table.column("batch") * shared, heads / shared, keys, table.column("head_dim"))


def _keys_of_turn(table: OpTable) -> Floats:
    turn: Floats = _KEYS_OF_TURN[np.searchsorted(_WIDTHS, table.column("head_dim"))]
    return turn


def decode_loops(table: OpTable) -> Loops:
    """Loops of FlashAttention-2 over keys, for one query per sequence.

    Query heads that share a KV head are rows of one block, and its keys are dealt to more blocks where SMs would be
    idle (Flash-Decoding); with a window, and where no heads share one, each head is a block that is not cut.
    """
    heads, shared = table.column("heads"), shared_heads(table)
    context, window = table.column("context_length"), table.column("window")
    windowed = window > 0.0
    together = (heads > shared) & ~windowed
    keys = np.where(windowed, np.minimum(context, window), context)
    steps = np.ceil(keys / _keys_of_turn(table))
    return Loops(table.column("batch") * np.where(together, shared, heads), steps, np.where(together, steps, 1.0))


def _is_masked(table: OpTable, group: Floats) -> Bools:
    """Return whether masked multi-head attention runs, bool [n], for `group` query heads per KV head."""
    masked: Bools = np.isin(table.column("stack"), _MASKED) & ((group == 1.0) | (group > _MOST_TOGETHER))
    return masked


class DecodeRows(NamedTuple):
    """Rows of decode, float64 [n] each but `masked`, bool [n]: whether masked multi-head attention runs."""

    batch: Floats
    heads: Floats
    shared: Floats
    width: Floats
    keys: Floats
    key_bytes: Floats
    window: Floats
    keys_of_turn: Floats
    masked: Bools


def _rows(table: OpTable) -> DecodeRows:
    heads, shared = table.column("heads"), shared_heads(table)
    sizes = (table.column("batch"), heads, shared, table.column("head_dim"), attended(table).keys, key_bytes(table))
    return DecodeRows(*sizes, table.column("window"), _keys_of_turn(table), _is_masked(table, heads / shared))


def _fill_costs(rows: DecodeRows, library: Floats, costs: LibraryCosts) -> None:
    """Fill blocks, and what each costs beside its products and bytes."""
    for q in range(len(rows.batch)):
        width, group = rows.width[q], rows.heads[q] / rows.shared[q]
        read = 2.0 * width * rows.keys[q] * rows.key_bytes[q]
        for generation in range(len(library)):
            code = int(library[generation, q])
            blocks, clocks = rows.shared[q], _CLOCKS[code, 0] + _CLOCKS[code, 1] * width
            if rows.masked[q]:
                blocks, clocks = rows.heads[q], _MASKED_BLOCK_CLOCKS + _MASKED_ELEMENT_CLOCKS * width
                if group > 1.0:
                    clocks += read / _MASKED_BYTES_PER_CLOCK
            elif code == _FA2:
                if rows.window[q] > 0.0:  # the heads of a group are not computed together
                    blocks = rows.heads[q]
                costs.shared_bytes[generation, q] = 2.0 * width * (_QUERIES_OF_BLOCK + 2.0 * rows.keys_of_turn[q])
            elif code == _FLASHINFER and group < _FEW_TOGETHER and rows.key_bytes[q] > 1.0:
                clocks = _FEW_CLOCKS / group
            elif code == _ALONE:
                clocks += read / _ALONE_BYTES_PER_CLOCK
            costs.blocks[generation, q] = rows.batch[q] * blocks
            costs.clocks[generation, q] = clocks


DECODE_COSTS = Costing(_rows, _fill_costs)


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
        np.ones(table.kind.size),
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
