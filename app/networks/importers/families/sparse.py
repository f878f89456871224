"""Decoders whose attention selects keys (DeepSeek-V3.2 and V4, GLM-5, MiniMax-M3), and LongCat-Flash."""

from __future__ import annotations

from dataclasses import replace

from app.networks.importers.families.config_fields import MOST_EXPERTS, Fields
from app.networks.importers.families.decoders import (
    attention_of,
    experts_of,
    grouped,
    inner_of,
    latent_heads,
    opened,
    whole,
)
from app.networks.transformers.architecture import Architecture, AttentionModule, FeedForward, Layer

_DENSE = {"dense": True, "sparse": False}
# Layers of GLM-5.2 that have an indexer, and those that use the selection of the one before.
_OWN = {"full": True, "shared": False}
_MARKS = {0: False, 1: True}
# Compression of DeepSeek-V4 in whose layers an indexer selects; in the others all compressed keys are seen.
_SELECTED = 4


def longcat_flash(fields: Fields) -> Architecture:
    """LongCat-Flash (Meituan, 2025): two dense layers of latent attention for every part with experts.

    Some of the router's choices are experts that return their input (`zero_expert_num`), which take no time.
    """
    fields, traits = opened(fields)
    layers, experts = fields.layers("num_hidden_layers"), experts_of(fields, traits)
    idle = fields.size("zero_expert_num", default=0, least=0, most=MOST_EXPERTS)
    chosen = max(round(experts.top_k * experts.count / (experts.count + idle)), 1)
    both = Layer(latent_heads(fields), inner_of(fields, traits))
    return whole(fields, traits, ((both, 2 * layers), (Layer(None, replace(experts, top_k=chosen)), layers)))


def deepseek_v32(fields: Fields) -> Architecture:
    """DeepSeek-V3.2 and GLM-5: DeepSeek-V3's layers, attention on the `index_topk` keys that an indexer selects."""
    fields, traits = opened(fields)
    layers = fields.layers("num_hidden_layers")
    own = fields.kinds("indexer_types", _OWN, layers) or [True] * layers
    first = fields.size("first_k_dense_replace", default=0, least=0, most=layers)
    dense = fields.kinds("mlp_layer_types", _DENSE, layers) or [k < first for k in range(layers)]
    if fields.size("moe_layer_freq", default=1) != 1:
        fields.refuse("moe_layer_freq", "must be 1: send any other network as a graph")
    selecting = _latent_module(fields)
    shared = replace(selecting, index_heads=0)
    experts = experts_of(fields, traits) if not all(dense) else None
    inner = inner_of(fields, traits) if any(dense) else None
    parts = (
        Layer(selecting if full else shared, inner if plain else experts)
        for full, plain in zip(own, dense, strict=True)
    )
    return whole(fields, traits, grouped(parts))


def _latent_module(fields: Fields) -> AttentionModule:
    heads = latent_heads(fields)
    latent = heads.latent
    assert latent is not None
    return AttentionModule(
        "dsa",
        heads.heads,
        latent.plain,
        latent.value,
        latent_dim=latent.keys,
        rope_dim=heads.rotary,
        query_rank=latent.query,
        index_heads=fields.size("index_n_heads"),
        index_dim=fields.size("index_head_dim"),
        index_keys=fields.size("index_topk"),
    )


def deepseek_v4(fields: Fields) -> Architecture:
    """DeepSeek-V4: windows beside keys compressed by 4 (selected) or 128, residual streams, experts in every layer."""
    fields, traits = opened(fields)
    layers = fields.layers("num_hidden_layers")
    ratios = fields.sizes("compress_ratios", layers)
    if ratios is None:
        fields.refuse("compress_ratios", f"is missing: {layers} whole numbers, one per layer")
    experts = experts_of(fields, traits)
    shared = replace(experts.each, inner=fields.size("n_shared_experts", default=1) * experts.each.inner)
    experts = replace(experts, shared=shared)
    model = whole(fields, traits, grouped(Layer(_compressed(fields, ratio), experts) for ratio in ratios))
    streams = fields.size("hc_mult", default=4)
    return replace(model, stacks=(replace(model.stacks[0], streams=streams),))


def _compressed(fields: Fields, ratio: int) -> AttentionModule:
    """Return the attention of a layer whose keys are compressed by `ratio` (0: a window alone)."""
    size, selected = fields.size("head_dim"), ratio == _SELECTED
    return AttentionModule(
        "csa" if selected else "hca",
        fields.size("num_attention_heads"),
        size,
        size,
        query_rank=fields.size("q_lora_rank"),
        output_rank=fields.size("o_lora_rank"),
        output_groups=fields.size("o_groups"),
        index_heads=fields.size("index_n_heads") if selected else 0,
        index_dim=fields.size("index_head_dim") if selected else 0,
        index_keys=fields.size("index_topk") if selected else 0,
        compression=ratio,
        window=fields.size("sliding_window", default=128),
        sinks=True,
    )


def minimax_m3(fields: Fields) -> Architecture:
    """MiniMax-M3: grouped heads that see selected blocks of keys, dense layers first, then experts."""
    fields, traits = opened(fields)
    layers = fields.layers("num_hidden_layers")
    sparse = fields.inside("sparse_attention_config")
    selects = sparse.kinds("sparse_attention_freq", _MARKS, layers) or [False] * layers
    mixed = fields.kinds("moe_layer_freq", _MARKS, layers) or [True] * layers
    heads = attention_of(fields, traits)
    module = AttentionModule("msa", heads.heads, heads.head_dim, heads.head_dim, heads.kv_heads, head_norm=True)
    if any(selects):
        module = replace(
            module,
            index_heads=sparse.size("sparse_num_index_heads"),
            index_dim=sparse.size("sparse_index_dim"),
            index_keys=sparse.size("sparse_topk_blocks") * sparse.size("sparse_block_size"),
        )
    experts, dense = experts_of(fields, traits), inner_of(fields, traits, "dense_intermediate_size")
    shared = fields.size("n_shared_experts", default=0, least=0, most=MOST_EXPERTS)
    inner = shared * fields.size("shared_intermediate_size", default=experts.each.inner, least=0)
    experts = replace(experts, shared=FeedForward(inner, experts.each.activation, gated=True) if inner else None)
    parts = (
        Layer(module if selected else heads, experts if routed else dense)
        for selected, routed in zip(selects, mixed, strict=True)
    )
    return whole(fields, traits, grouped(parts))
