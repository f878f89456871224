"""gpt-oss (OpenAI, 2025): layers with and without a window in turn, biases, sinks, experts with biases."""

from __future__ import annotations

from dataclasses import replace

from app.graphs.importers.families.config_fields import MOST_EXPERTS, Fields
from app.graphs.importers.families.llama import decoder, gated, grouped, heads_of
from app.graphs.importers.families.mixtures import top_k
from app.graphs.transformers.architecture import Architecture, Experts, Layer

WINDOWED = {"sliding_attention": True, "full_attention": False}


def gpt_oss(fields: Fields) -> Architecture:
    """gpt-oss: without `layer_types` the first layer of every two has the window."""
    bias = fields.flag("attention_bias", default=True)
    heads = replace(heads_of(fields), bias=bias, out_bias=bias, sinks=True)
    window = replace(heads, window=fields.size("sliding_window", default=128))
    count = fields.size("num_local_experts", "num_experts", most=MOST_EXPERTS)
    each = gated(fields, bias=True)
    experts = Experts(count, top_k(fields, count, default=4), each, router_bias=True)
    layers = fields.layers("num_hidden_layers")
    local = fields.kinds("layer_types", WINDOWED, layers) or [k % 2 == 0 for k in range(layers)]
    return decoder(fields, grouped(Layer(window if windowed else heads, experts) for windowed in local))
