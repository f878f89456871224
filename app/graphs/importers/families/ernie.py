"""ERNIE 4.5 (Baidu, 2025): Llama's layers, and with experts a dense first layer and shared experts."""

from __future__ import annotations

from dataclasses import replace

from app.graphs.importers.families.config_fields import MOST_EXPERTS, Fields
from app.graphs.importers.families.llama import decoder, gated, grouped, heads_of
from app.graphs.transformers.architecture import Architecture, Attention, Experts, FeedForward, Layer


def ernie4_5(fields: Fields) -> Architecture:
    """ERNIE 4.5, dense."""
    bias = fields.flag("use_bias", default=False)
    layer = Layer(_heads(fields), gated(fields, bias=bias))
    return decoder(_tied(fields), ((layer, fields.layers("num_hidden_layers")),))


def ernie4_5_moe(fields: Fields) -> Architecture:
    """ERNIE 4.5 with experts from layer `moe_layer_start_index` on, in every `moe_layer_interval`-th."""
    layers = fields.layers("num_hidden_layers")
    first = fields.size("moe_layer_start_index", default=1, least=0, most=layers)
    last = fields.size("moe_layer_end_index", default=layers - 1, least=-1, most=MOST_EXPERTS)
    last, step = (layers - 1 if last < 0 else last), fields.size("moe_layer_interval", default=1)
    count = fields.size("moe_num_experts", most=MOST_EXPERTS)
    each = gated(fields, "moe_intermediate_size")
    shared = fields.size("moe_num_shared_experts", default=0, least=0, most=MOST_EXPERTS)
    experts = Experts(
        count,
        fields.size("moe_k", default=min(6, count), most=count),
        each,
        shared=FeedForward(shared * each.inner, each.activation, gated=True) if shared else None,
        router_bias=True,
    )
    heads, dense = _heads(fields), gated(fields, bias=fields.flag("use_bias", default=False))
    routed = [first <= k <= last and (k + 1) % step == 0 for k in range(layers)]
    return decoder(_tied(fields), grouped(Layer(heads, experts if mixed else dense) for mixed in routed))


def _heads(fields: Fields) -> Attention:
    bias = fields.flag("use_bias", default=False)
    return replace(heads_of(fields), bias=bias, out_bias=bias)


def _tied(fields: Fields) -> Fields:
    """Return the fields with tied embeddings unless they say otherwise."""
    return Fields({"tie_word_embeddings": True, **fields.config}, fields.model_type, fields.within)
