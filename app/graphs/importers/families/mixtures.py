"""Llama's layer with a mixture of experts: Mixtral, Qwen2-MoE, Qwen3-MoE."""

from __future__ import annotations

from dataclasses import replace

from app.graphs.importers.families.config_fields import MOST_EXPERTS, MOST_SIZE, Fields
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


def hunyuan_moe(fields: Fields) -> Architecture:
    """Hunyuan with experts (Tencent, 2025): sizes of experts are one number, or a list of one per layer, all equal."""
    layers, normed = fields.layers("num_hidden_layers"), fields.flag("use_qk_norm", default=True)
    if fields.flag("use_cla", default=False):
        fields.refuse("use_cla", "must be false (keys that layers share are not known): send a graph")
    bias = fields.flag("attention_bias", default=False)
    heads = replace(heads_of(fields), bias=bias, out_bias=bias, head_norm=normed)
    count = _of_all_layers(fields, "num_experts", layers, None)
    chosen = _of_all_layers(fields, "moe_topk", layers, 1)
    if not chosen <= count:
        fields.refuse("moe_topk", f"must be at most {count}, the experts")
    activation = gated(fields)
    each = replace(activation, inner=_of_all_layers(fields, "moe_intermediate_size", layers, activation.inner))
    shared = _of_all_layers(fields, "num_shared_expert", layers, 0)
    if not fields.flag("use_mixed_mlp_moe", default=True):
        shared = 0
    always = replace(each, inner=shared * activation.inner) if shared else None
    experts = Experts(count, chosen, each, shared=always)
    dense = fields.size("moe_layer_num_skipped", default=0, least=0, most=layers)
    parts = ((Layer(heads, activation), dense), (Layer(heads, experts), layers - dense))
    return decoder(fields, tuple(part for part in parts if part[1]))


def _of_all_layers(fields: Fields, name: str, layers: int, default: int | None) -> int:
    """Return a size that is given once, or for each layer alike."""
    if not isinstance(fields.given(name), list):
        return fields.size(name, default=default, least=0, most=MOST_SIZE)
    sizes = set(fields.sizes(name, layers) or ())
    if len(sizes) != 1:
        fields.refuse(name, "must be the same in all layers: send any other network as a graph")
    return sizes.pop()
