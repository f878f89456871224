"""Falcon (TII, 2023), MPT (MosaicML, 2023) and DBRX (Databricks, 2024): configurations of shapes of their own."""

from __future__ import annotations

from dataclasses import replace

from app.graphs.importers.families.config_fields import MOST_EXPERTS, Fields
from app.graphs.importers.families.decoders import Flag, Variant, of_layers, whole
from app.graphs.importers.families.llama import heads_of
from app.graphs.importers.families.mixtures import top_k
from app.graphs.transformers.architecture import Architecture, Attention, Experts, FeedForward, Layer

_NAMES = {"hidden_size": "d_model", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"}


def falcon(fields: Fields) -> Architecture:
    """Falcon: one head of keys, or groups of them; both parts in parallel, with a norm for each in the larger ones."""
    new = fields.flag("new_decoder_architecture", default=False)
    shared = fields.flag("multi_query", default=True) and not new
    heads = fields.size("num_attention_heads")
    kv_heads = 1 if shared else fields.size("num_kv_heads", default=heads)
    width = fields.size("hidden_size")
    norms = fields.size("num_ln_in_parallel_attn", default=2 if new else 1, most=2)
    variant = Variant(
        norm="layer_norm", parallel=new or Flag("parallel_attn", default=True), bias=Flag("bias"),
        abreast="parallel_normed" if new and norms > 1 else "parallel", out_bias=Flag("bias"),
        inner_bias=Flag("bias"), tied=True, activation="gelu", gated=False, one_linear=True, alibi=Flag("alibi"),
    )  # fmt: skip
    fields = fields.named({"hidden_act": "activation", "intermediate_size": "ffn_hidden_size"})
    own = fields.having(num_key_value_heads=kv_heads, ffn_hidden_size=4 * width)
    return of_layers(own, variant)


def mpt(fields: Fields) -> Architecture:
    """MPT: no biases, and a bias of scores by distance in place of positions."""
    named = fields.named(_NAMES)
    attention = named.inside("attn_config")
    variant = Variant(
        norm="unbiased_layer_norm", bias=False, out_bias=False, inner_bias=False, tied=True, activation="gelu",
        gated=False, one_linear=True, alibi=attention.flag("alibi", default=True),
    )  # fmt: skip
    width = named.size("hidden_size")
    shared = attention.size("kv_n_heads", default=named.size("num_attention_heads"))
    own = named.having(intermediate_size=named.size("expansion_ratio", default=4) * width, num_key_value_heads=shared)
    return of_layers(own, variant)


def dbrx(fields: Fields) -> Architecture:
    """DBRX: experts in every layer, norms without biases."""
    named = fields.named(_NAMES)
    attention, inner = named.inside("attn_config"), named.inside("ffn_config")
    own = named.having(num_key_value_heads=attention.size("kv_n_heads", default=1))
    heads: Attention = replace(heads_of(own), one_linear=True)
    count = inner.size("moe_num_experts", default=4, most=MOST_EXPERTS)
    chosen = top_k(inner.named({"num_experts_per_tok": "moe_top_k"}), count, default=1)
    experts = Experts(count, chosen, FeedForward(inner.size("ffn_hidden_size", default=3584), "silu", gated=True))
    layers = ((Layer(heads, experts), own.layers("num_hidden_layers")),)
    return whole(own, Variant(norm="unbiased_layer_norm"), layers)
