"""MiniMax-M2 and M2.5 (2025 and 2026): Llama's layer, norms over all heads, routed experts in every layer."""

from __future__ import annotations

from dataclasses import replace

from app.graphs.importers.families.config_fields import MOST_EXPERTS, Fields
from app.graphs.importers.families.llama import decoder, gated, heads_of
from app.graphs.importers.families.mixtures import top_k
from app.graphs.transformers.architecture import Architecture, Experts, FeedForward, Layer


def minimax_m2(fields: Fields) -> Architecture:
    """MiniMax-M2: half of a head is rotated."""
    heads = heads_of(fields)
    normed = fields.flag("use_qk_norm", default=True)
    heads = replace(heads, rotary=fields.size("rotary_dim", default=heads.head_dim), whole_norm=normed)
    count = fields.size("num_local_experts", most=MOST_EXPERTS)
    shared = fields.size("shared_intermediate_size", default=0, least=0)
    each = gated(fields)
    always = FeedForward(shared, each.activation, gated=True) if shared else None
    bias = fields.flag("use_routing_bias", default=True)
    experts = Experts(count, top_k(fields, count, default=8), each, shared=always, router_bias=bias)
    return decoder(fields, ((Layer(heads, experts), fields.layers("num_hidden_layers")),))
