"""OLMo 2 and 3 (Ai2, 2024 and 2025): norms after each part, queries and keys normalised over all heads."""

from __future__ import annotations

from dataclasses import replace

from app.graphs.importers.families.config_fields import Fields
from app.graphs.importers.families.gpt_oss import WINDOWED
from app.graphs.importers.families.llama import decoder, gated, grouped, heads_of
from app.graphs.transformers.architecture import Architecture, Attention, Layer


def olmo2(fields: Fields) -> Architecture:
    """OLMo 2."""
    return decoder(fields, ((Layer(_heads(fields), gated(fields), "inner"), fields.layers("num_hidden_layers")),))


def olmo3(fields: Fields) -> Architecture:
    """OLMo 3: without `layer_types` every fourth layer sees all keys, the others a window."""
    layers = fields.layers("num_hidden_layers")
    local = fields.kinds("layer_types", WINDOWED, layers) or [(k + 1) % 4 != 0 for k in range(layers)]
    heads, inner = _heads(fields), gated(fields)
    window = replace(heads, window=fields.size("sliding_window", default=4096))
    return decoder(fields, grouped(Layer(window if windowed else heads, inner, "inner") for windowed in local))


def _heads(fields: Fields) -> Attention:
    bias = fields.flag("attention_bias", default=False)
    return replace(heads_of(fields), bias=bias, out_bias=bias, whole_norm=True)
