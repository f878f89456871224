"""Qwen3-Next and Qwen3.5 (Alibaba, 2025 and 2026): three layers of a gated delta rule to one of gated attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from app.graphs.importers.families.config_fields import MOST_EXPERTS, Fields
from app.graphs.importers.families.llama import decoder, gated, grouped, heads_of
from app.graphs.importers.families.mixtures import top_k
from app.graphs.transformers.architecture import Architecture, Attention, Experts, FeedForward, Layer, Recurrence

_LINEAR = {"linear_attention": True, "full_attention": False}


def qwen3_5(fields: Fields) -> Architecture:
    """Qwen3.5's and Qwen3.6's dense text part."""
    inner = gated(fields)
    return _hybrid(fields, lambda k: inner)


def qwen3_next(fields: Fields) -> Architecture:
    """Qwen3-Next and Qwen3.5 with experts, and a shared expert with a gate per token."""
    layers, step = fields.layers("num_hidden_layers"), fields.size("decoder_sparse_step", default=1)
    dense = fields.indices("mlp_only_layers", layers)
    count = fields.size("num_experts", most=MOST_EXPERTS)
    shared = gated(fields, "shared_expert_intermediate_size")
    each = gated(fields, "moe_intermediate_size")
    experts = Experts(count, top_k(fields, count, default=10), each, shared=shared, shared_gate=True)
    mixed = {k for k in range(layers) if k not in dense and (k + 1) % step == 0}
    always = experts if len(mixed) == layers else gated(fields)
    return _hybrid(fields, lambda k: experts if k in mixed else always)


def _hybrid(fields: Fields, inner: Callable[[int], FeedForward | Experts]) -> Architecture:
    """Return the decoder whose layer k has the feed-forward part `inner(k)`."""
    layers, interval = fields.layers("num_hidden_layers"), fields.size("full_attention_interval", default=4)
    linear = fields.kinds("layer_types", _LINEAR, layers) or [(k + 1) % interval != 0 for k in range(layers)]
    full, delta = _attention(fields), _delta(fields)
    return decoder(fields, grouped(Layer(delta if linear[k] else full, inner(k)) for k in range(layers)))


def _attention(fields: Fields) -> Attention:
    heads = heads_of(fields)
    rope = fields.inside("rope_parameters")
    part = (rope if "partial_rotary_factor" in rope.config else fields).share("partial_rotary_factor", default=0.25)
    bias, gate = fields.flag("attention_bias", default=False), fields.flag("attn_output_gate", default=True)
    return replace(
        heads, bias=bias, out_bias=bias, head_norm=True, gated=gate, rotary=max(int(heads.head_dim * part), 1)
    )


def _delta(fields: Fields) -> Recurrence:
    keys = fields.size("linear_num_key_heads", default=16)
    values = fields.size("linear_num_value_heads", default=32)
    fields.whole("linear_num_key_heads", values, keys, "linear_num_value_heads")
    return Recurrence(
        "gdn",
        keys,
        values,
        fields.size("linear_key_head_dim", default=128),
        fields.size("linear_value_head_dim", default=128),
        taps=fields.size("linear_conv_kernel_dim", default=4),
    )
