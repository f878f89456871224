"""Llama's layer with a mixture of experts: Mixtral, Qwen2-MoE, Qwen3-MoE."""

from __future__ import annotations

from dataclasses import replace

from app.graphs.importers.families.config_fields import MOST_EXPERTS, Fields
from app.graphs.importers.families.llama import decoder, gated, heads_of
from app.graphs.transformers.architecture import Architecture, Attention, Experts, FeedForward, Layer


def mixtral(fields: Fields) -> Architecture:
    """Mixtral (Jiang et al. 2024): every layer has experts."""
    count = fields.size("num_local_experts", "num_experts", default=8, most=MOST_EXPERTS)
    jitter = fields.present("router_jitter_noise", default=False)
    experts = Experts(count, top_k(fields, count, default=2), gated(fields), jitter=jitter)
    heads = replace(heads_of(fields), window=fields.size("sliding_window", default=0))
    return decoder(fields, ((Layer(heads, experts), fields.layers("num_hidden_layers")),))


def qwen2_moe(fields: Fields) -> Architecture:
    """Qwen1.5 and Qwen2 with experts: in addition a shared expert with a gate per token."""
    count = _count(fields)
    shared = gated(fields, "shared_expert_intermediate_size")
    experts = Experts(
        count, top_k(fields, count, default=4), gated(fields, "moe_intermediate_size"), shared=shared, shared_gate=True
    )
    return _sparse(fields, replace(heads_of(fields), bias=True), experts)


def qwen3_moe(fields: Fields) -> Architecture:
    """Qwen3 with experts."""
    count = _count(fields)
    experts = Experts(count, top_k(fields, count, default=8), gated(fields, "moe_intermediate_size"))
    bias = fields.flag("attention_bias", default=False)
    return _sparse(fields, replace(heads_of(fields), bias=bias, out_bias=bias, head_norm=True), experts)


def top_k(fields: Fields, count: int, default: int) -> int:
    """Return the experts per token, at most `count`."""
    return fields.size(
        "num_experts_per_tok", "num_experts_per_token", "top_k_experts", default=min(default, count), most=count
    )


def _count(fields: Fields) -> int:
    return fields.size("num_experts", "num_routed_experts", most=MOST_EXPERTS)


def _sparse(fields: Fields, heads: Attention, experts: Experts) -> Architecture:
    """Return a decoder with experts in every `decoder_sparse_step`-th layer, except those in `mlp_only_layers`."""
    layers, step = fields.layers("num_hidden_layers"), fields.size("decoder_sparse_step", default=1)
    dense = fields.indices("mlp_only_layers", layers)
    mixed = layers // step - sum((k + 1) % step == 0 for k in dense)
    parts: list[tuple[Layer, int]] = []
    if mixed < layers:
        inner: FeedForward = gated(fields)
        parts.append((Layer(heads, inner), layers - mixed))
    if mixed:
        parts.append((Layer(heads, experts), mixed))
    return decoder(fields, tuple(parts))
