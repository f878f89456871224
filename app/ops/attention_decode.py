"""Blocks of decode attention: what each loops over, and what it costs beside its products and its bytes.

Kernels that decode give a block the query heads that share a KV head, and deal its keys to more blocks where SMs would
be idle (Flash-Decoding). TensorRT-LLM has another kernel, masked multi-head attention, where heads share no KV head or
too many: each query head is a block that reads the keys and values of its KV head again.
"""

from __future__ import annotations

import numpy as np

from app.ops.attention_tiles import attended, key_bytes, shared_heads
from app.ops.figures import Loops, Products, Rereads
from app.ops.stacks import STACKS
from app.tables.arrays import Floats
from app.tables.ops import OpTable

# Keys that a block of FlashAttention-2 reads at a turn, by how wide heads are at most (its `set_params_splitkv`).
_WIDTHS, _KEYS_OF_TURN = np.array([64.0, 128.0]), np.array([256.0, 128.0, 64.0])
# SM clocks of a block per KV head: to begin and end, and per element of a head; of a query head's block in masked
# multi-head attention, and bytes a clock at which it reads again what the L2 keeps. Chosen with architectures left out
# (docs/explanation/notebook.md).
_BLOCK_CLOCKS, _ELEMENT_CLOCKS = 1800.0, 14.0
_MASKED_BLOCK_CLOCKS, _MASKED_ELEMENT_CLOCKS, _MASKED_BYTES_PER_CLOCK = 2000.0, 5.0, 25.0
# Most query heads per KV head for which TensorRT-LLM has kernels that compute them together.
_MOST_TOGETHER = 32.0
_TRTLLM = float(STACKS.index("trtllm"))


def decode_products(table: OpTable) -> Products:
    """Scores of the query heads that share a KV head, per sequence; keys are dealt to tiles (Flash-Decoding)."""
    heads, keys = table.column("heads"), attended(table).keys
    shared = shared_heads(table)
    return Products(table.column("batch") * shared, heads / shared, keys, table.column("head_dim"))


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
    steps = np.ceil(keys / _KEYS_OF_TURN[np.searchsorted(_WIDTHS, table.column("head_dim"))])
    return Loops(table.column("batch") * np.where(together, shared, heads), steps, np.where(together, steps, 1.0))


def _is_masked(table: OpTable, group: Floats) -> Floats:
    """Whether TensorRT-LLM's masked multi-head attention runs, bool [n], for `group` query heads per KV head."""
    masked: Floats = (table.column("stack") == _TRTLLM) & ((group == 1.0) | (group > _MOST_TOGETHER))
    return masked


def decode_blocks(table: OpTable) -> Rereads:
    """SM clocks of the blocks of every row, beside their products and bytes."""
    batch, heads, width = (table.column(name) for name in ("batch", "heads", "head_dim"))
    shared = shared_heads(table)
    again = (heads - shared) * 2.0 * width * attended(table).keys * key_bytes(table)
    masked = heads * (_MASKED_BLOCK_CLOCKS + _MASKED_ELEMENT_CLOCKS * width) + again / _MASKED_BYTES_PER_CLOCK
    usual = shared * (_BLOCK_CLOCKS + _ELEMENT_CLOCKS * width)
    nothing = np.zeros(len(table))
    return Rereads(nothing, nothing, nothing, batch * np.where(_is_masked(table, heads / shared), masked, usual))
