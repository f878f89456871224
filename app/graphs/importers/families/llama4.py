"""Llama 4 (Meta, 2025): three layers of attention within chunks to one of all keys, experts with a shared one."""

from __future__ import annotations

from dataclasses import replace

from app.graphs.importers.families.config_fields import MOST_EXPERTS, Fields
from app.graphs.importers.families.llama import decoder, gated, grouped, heads_of
from app.graphs.importers.families.mixtures import top_k
from app.graphs.transformers.architecture import Architecture, Experts, Layer

# Every fourth layer has no rotary positions and sees all keys.
_FULL_EVERY = 4
_CHUNKED = {"chunked_attention": True, "full_attention": False}


def llama4(fields: Fields) -> Architecture:
    """Llama 4's text part; `interleave_moe_layer_step`: every so many layers has experts."""
    bias = fields.flag("attention_bias", default=False)
    everywhere = replace(heads_of(fields), rotary=0, bias=bias, out_bias=bias)
    local = replace(heads_of(fields), bias=bias, out_bias=bias, chunk=fields.size("attention_chunk_size", default=8192))
    count = fields.size("num_local_experts", most=MOST_EXPERTS)
    each = gated(fields)
    experts = Experts(count, top_k(fields, count, default=1), each, shared=each)
    layers, step = fields.layers("num_hidden_layers"), fields.size("interleave_moe_layer_step", default=1)
    chunked = fields.kinds("layer_types", _CHUNKED, layers) or [(k + 1) % _FULL_EVERY != 0 for k in range(layers)]
    mixed = fields.indices("moe_layers", layers) or {k for k in range(layers) if (k + 1) % step == 0}
    dense = gated(fields, "intermediate_size_mlp") if len(mixed) < layers else each
    return decoder(
        fields,
        grouped(Layer(local if chunked[k] else everywhere, experts if k in mixed else dense) for k in range(layers)),
    )
