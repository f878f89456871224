"""Tiling of attention kernels, which deal queries and keys to blocks (FlashAttention-2, Dao 2023).

Counts of attended keys too. Causal: the query at position p attends to min(p + 1, w) keys, w the window (0, or C and
more: all).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from app.coefficients import Coefficients
from app.ops.figures import Products, Queries
from app.tables.arrays import Floats
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
