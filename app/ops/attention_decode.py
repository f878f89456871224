"""Blocks of decode attention: what each loops over, and what it costs beside its products and its bytes.

Kernels that decode give a block the query heads that share a KV head, and deal its keys to more blocks where SMs would
be idle (Flash-Decoding). TensorRT-LLM has another kernel, masked multi-head attention, where heads share no KV head or
too many: each query head is a block that reads the keys and values of its KV head again.
"""

from __future__ import annotations

import numpy as np

from app.ops.attention_tiles import attended, key_bytes, shared_heads
from app.ops.figures import LibraryCosts, Loops, Products
from app.ops.stack_kernels import LIBRARIES, LIBRARY_CODE
from app.ops.stacks import STACKS
from app.tables.arrays import Bools, Floats, Ints
from app.tables.ops import OpTable

# Keys that a block of FlashAttention-2 reads at a turn, by how wide heads are at most (its `set_params_splitkv`).
_WIDTHS, _KEYS_OF_TURN = np.array([64.0, 128.0]), np.array([256.0, 128.0, 64.0])
# SM clocks of a block per KV head: to begin and end, and per element of a head, by library; "" of all others. Times of
# many short sequences show them, nearly the same on all GPUs (docs/explanation/notebook.md).
_BLOCK_CLOCKS = {
    "": (1800.0, 14.0),
    "flash-attention-2": (10_500.0, 0.0),
    "flash-attention-3": (4400.0, 20.0),
    "flashinfer": (3200.0, 34.0),
    "trtllm": (7000.0, 20.0),
    "trtllm-fp8": (7000.0, 20.0),
}
_CLOCKS = np.array([_BLOCK_CLOCKS.get(name, _BLOCK_CLOCKS[""]) for name in LIBRARIES])
# The same of a query head's block in masked multi-head attention, and the bytes that it reads again per clock.
_MASKED_BLOCK_CLOCKS, _MASKED_ELEMENT_CLOCKS, _MASKED_BYTES_PER_CLOCK = 2000.0, 5.0, 25.0
# FlashInfer's kernels without tensor units, for fewer query heads per KV head than this on caches of 16 bits: SM clocks
# of a query head's block.
_FEW_TOGETHER, _FEW_CLOCKS = 4.0, 2500.0
# Bytes per clock of a block that reads all keys of a sequence alone, as those of "trtllm-fp8".
_ALONE_BYTES_PER_CLOCK = 8.0
# Queries that a block of FlashAttention-2 has place for in shared memory, beside keys and values of a turn.
_QUERIES_OF_BLOCK = 64.0
# Most query heads per KV head for which TensorRT-LLM has kernels that compute them together.
_MOST_TOGETHER = 32.0
_TRTLLM = float(STACKS.index("trtllm"))


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
    """Whether TensorRT-LLM's masked multi-head attention runs, bool [n], for `group` query heads per KV head."""
    masked: Bools = (table.column("stack") == _TRTLLM) & ((group == 1.0) | (group > _MOST_TOGETHER))
    return masked


def decode_costs(table: OpTable, library: Ints) -> LibraryCosts:
    """Blocks of every row, and what each costs beside its products and bytes."""
    heads, width, shared = table.column("heads"), table.column("head_dim"), shared_heads(table)
    group, kv_bytes = heads / shared, key_bytes(table)
    read = 2.0 * width * attended(table).keys * kv_bytes
    begins, per_element = _CLOCKS[library].transpose(2, 0, 1)
    clocks = begins + per_element * width
    few = (library == LIBRARY_CODE["flashinfer"]) & (group < _FEW_TOGETHER) & (kv_bytes > 1.0)
    clocks = np.where(few, _FEW_CLOCKS / group, clocks)
    clocks += np.where(library == LIBRARY_CODE["trtllm-fp8"], read / _ALONE_BYTES_PER_CLOCK, 0.0)
    masked = _MASKED_BLOCK_CLOCKS + _MASKED_ELEMENT_CLOCKS * width
    masked = masked + np.where(group > 1.0, read, 0.0) / _MASKED_BYTES_PER_CLOCK
    is_masked, is_fa2 = _is_masked(table, group), library == LIBRARY_CODE["flash-attention-2"]
    # With a window FlashAttention-2 does not compute the heads of a group together.
    apart = is_masked | (is_fa2 & (table.column("window") > 0.0))
    in_shared = 2.0 * width * (_QUERIES_OF_BLOCK + 2.0 * _keys_of_turn(table))
    nothing = np.zeros(clocks.shape)
    return LibraryCosts(
        table.column("batch") * np.where(apart, heads, shared),
        np.where(is_masked, masked, clocks),
        np.where(is_fa2 & ~is_masked, in_shared, 0.0),
        nothing,
        nothing,
    )
