"""MiMo (Xiaomi, 2025): Qwen2's layers; MiMo-V2: layers with and without a window, of other heads, and experts."""

from __future__ import annotations

from dataclasses import replace

from app.graphs.importers.families.config_fields import MOST_EXPERTS, Fields
from app.graphs.importers.families.llama import decoder, gated, grouped
from app.graphs.importers.families.mixtures import top_k
from app.graphs.transformers.architecture import Architecture, Attention, Experts, Layer

_MARKS = {0: False, 1: True}


def mimo_v2(fields: Fields) -> Architecture:
    """MiMo-V2: `hybrid_layer_pattern` marks layers with a window, `moe_layer_freq` those with experts."""
    layers = fields.layers("num_hidden_layers")
    local = fields.kinds("hybrid_layer_pattern", _MARKS, layers) or [False] * layers
    mixed = fields.kinds("moe_layer_freq", _MARKS, layers) or [True] * layers
    full = replace(_heads(fields, ""), sinks=fields.flag("add_full_attention_sink_bias", default=False))
    window = replace(
        _heads(fields, "swa_"),
        sinks=fields.flag("add_swa_attention_sink_bias", default=True),
        window=fields.size("sliding_window_size", "sliding_window", default=128),
    )
    count = fields.size("n_routed_experts", most=MOST_EXPERTS)
    each = gated(fields, "moe_intermediate_size")
    experts, dense = Experts(count, top_k(fields, count, default=8), each, router_bias=True), gated(fields)
    return decoder(
        fields,
        grouped(
            Layer(window if windowed else full, experts if routed else dense)
            for windowed, routed in zip(local, mixed, strict=True)
        ),
    )


def _heads(fields: Fields, prefix: str) -> Attention:
    """Return the heads of layers without a window, or of those with one (`swa_`), which default to the former."""
    heads = fields.size(f"{prefix}num_attention_heads", "num_attention_heads")
    shared = fields.size(f"{prefix}num_key_value_heads", "num_key_value_heads")
    fields.whole(f"{prefix}num_key_value_heads", heads, shared, f"{prefix}num_attention_heads")
    size = fields.size(f"{prefix}head_dim", "head_dim")
    value = fields.size(f"{prefix}v_head_dim", "v_head_dim", default=size)
    turned = int(size * fields.share("partial_rotary_factor", default=1.0))
    bias = fields.flag("attention_bias", default=False)
    return Attention(
        heads, shared, size, rotary=turned, bias=bias, copied="batched", value=0 if value == size else value
    )
