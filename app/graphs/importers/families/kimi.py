"""Kimi Linear (Moonshot, 2025) and Kimi K3 (2026): three layers of Kimi Delta Attention to one of latent attention."""

from __future__ import annotations

from dataclasses import replace

from app.graphs.importers.families.config_fields import MOST_EXPERTS, Fields
from app.graphs.importers.families.deepseek import latent_heads
from app.graphs.importers.families.llama import decoder, gated, grouped
from app.graphs.importers.families.mixtures import top_k
from app.graphs.transformers.architecture import Architecture, Experts, FeedForward, Layer, Recurrence


def kimi_linear(fields: Fields) -> Architecture:
    """Kimi Linear; `linear_attn_config` lists the layers of each kind, from 1."""
    layers = fields.layers("num_hidden_layers")
    linear = fields.inside("linear_attn_config")
    full = {k - 1 for k in linear.indices("full_attn_layers", layers + 1)}
    attention = replace(latent_heads(fields), gated=fields.flag("mla_use_output_gate", default=False))
    dense = fields.size("first_k_dense_replace", default=0, least=0, most=layers)
    if fields.size("moe_layer_freq", default=1) != 1:
        fields.refuse("moe_layer_freq", "must be 1: send any other network as a graph")
    experts, inner, delta = _experts(fields), gated(fields), _delta(linear)
    return decoder(
        fields,
        grouped(Layer(attention if k in full else delta, inner if k < dense else experts) for k in range(layers)),
    )


def _delta(linear: Fields) -> Recurrence:
    heads, size = linear.size("num_heads"), linear.size("head_dim")
    full = linear.flag("use_full_rank_gate", default=False)
    taps = linear.size("short_conv_kernel_size", default=4)
    return Recurrence("kda", heads, heads, size, size, taps=taps, decay_rank=size, gate_rank=0 if full else size)


def _experts(fields: Fields) -> Experts:
    count = fields.size("num_experts", most=MOST_EXPERTS)
    each = gated(fields, "moe_intermediate_size")
    shared = fields.size("num_shared_experts", default=0, least=0, most=MOST_EXPERTS)
    return Experts(
        count,
        top_k(fields, count, default=8),
        each,
        shared=FeedForward(shared * each.inner, each.activation, gated=True) if shared else None,
        router_bias=True,
        grouped=fields.size("num_expert_group", default=1) > 1,
        latent=fields.size("routed_expert_hidden_size", default=0, least=0),
    )
