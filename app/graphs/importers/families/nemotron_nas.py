"""Llama Nemotron (NVIDIA, 2025): Llama layers that a search changed one by one (`block_configs`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from app.graphs.importers.families.config_fields import MOST_SIZE, Fields, shown
from app.graphs.importers.families.llama import decoder, grouped, heads_of
from app.graphs.transformers.architecture import Architecture, Attention, FeedForward, Layer
from app.graphs.transformers.row_writer import ACTIVATIONS

# Inner features are rounded up to a multiple of this (NVIDIA's modeling_decilm.py).
_MULTIPLE = 256
_MOST_FACTOR = 1024.0


def nemotron_nas(fields: Fields) -> Architecture:
    """Llama-3.3-Nemotron-Super and Ultra: each block gives its heads per KV head, its inner width, or neither."""
    layers = fields.layers("num_hidden_layers")
    blocks = fields.config.get("block_configs")
    if not isinstance(blocks, list) or len(blocks) != layers:
        fields.refuse("block_configs", f"must be a list of {layers} objects, one per layer")
    heads = heads_of(Fields({**fields.config, "num_key_value_heads": None}, fields.model_type, fields.within))
    activation = fields.word("hidden_act", choices=ACTIVATIONS, default="silu")
    width = fields.size("hidden_size")
    return decoder(fields, grouped(_layer(fields, block, heads, activation, width) for block in blocks))


def _layer(fields: Fields, block: Any, heads: Attention, activation: str, width: int) -> Layer:
    """Return the layer of one block; parts that are `no_op` are absent."""
    if not isinstance(block, dict) or not all(isinstance(block.get(part), dict) for part in ("attention", "ffn")):
        fields.refuse("block_configs", "must hold objects with attention and ffn")
    attention, inner = block["attention"], block["ffn"]
    for part in (attention, inner):
        if part.get("replace_with_linear") or part.get("sparsify"):
            fields.refuse(
                "block_configs", "replace_with_linear and sparsify must be false: send the network as a graph"
            )
    return Layer(
        None if attention.get("no_op") else _grouped_heads(fields, attention, heads),
        None if inner.get("no_op") else FeedForward(_inner(fields, inner, width), activation, gated=True),
    )


def _grouped_heads(fields: Fields, attention: dict[str, Any], heads: Attention) -> Attention:
    group = attention.get("n_heads_in_group")
    if not isinstance(group, int) or isinstance(group, bool) or group < 1 or heads.heads % group:
        fields.refuse("block_configs", f"n_heads_in_group must divide the {heads.heads} heads; found {shown(group)}")
    window = attention.get("window_length") or 0
    if not isinstance(window, int) or isinstance(window, bool) or not 0 <= window <= MOST_SIZE:
        fields.refuse("block_configs", f"window_length must be a whole number; found {shown(window)}")
    return replace(heads, kv_heads=heads.heads // group, window=window)


def _inner(fields: Fields, inner: dict[str, Any], width: int) -> int:
    """Return the inner features: 2 / 3 of ffn_mult x width, rounded up."""
    factor = inner.get("ffn_mult")
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0.0 < factor <= _MOST_FACTOR:
        fields.refuse("block_configs", f"ffn_mult must be a positive number; found {shown(factor)}")
    return -(-int(2 * factor * width / 3) // _MULTIPLE) * _MULTIPLE
