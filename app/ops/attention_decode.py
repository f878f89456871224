"""Blocks of decode attention: what each loops over, and what it costs beside its products and its bytes.

Kernels that decode give a block the query heads that share a KV head, and deal its keys to more blocks where SMs would
be idle (Flash-Decoding). TensorRT-LLM has another kernel, masked multi-head attention, where heads share no KV head or
too many: each query head is a block that reads the keys and values of its KV head again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from app.coefficients import Coefficients
from app.ops.attention_tiles import attended, key_bytes, shared_heads
from app.ops.figures import Costing, LibraryCosts, Loops, Products
from app.stacks.libraries import LIBRARIES, LIBRARY_CODE, kernel_fact
from app.tables.arrays import Bools, Floats
from app.tables.ops import OpTable

_FITTED = Coefficients("operators")

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
