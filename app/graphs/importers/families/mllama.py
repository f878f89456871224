"""Llama 3.2 Vision (Meta, 2024): Llama's layers, and layers that attend to an image, which prompts of text skip."""

from __future__ import annotations

from dataclasses import replace

from app.graphs.importers.families.config_fields import Fields
from app.graphs.importers.families.llama import decoder, gated, heads_of
from app.graphs.transformers.architecture import Architecture, Layer

# Rows of the embedding that the logits lack: the marks of an image.
_IMAGE_TOKENS = 8


def mllama_text(fields: Fields) -> Architecture:
    """Llama 3.2 Vision's text part; `cross_attention_layers` do not run, their weights stay in memory."""
    layers, width = fields.layers("num_hidden_layers"), fields.size("hidden_size")
    crossed = len(fields.indices("cross_attention_layers", layers) or range(3, layers, 5))
    if crossed == layers:
        fields.refuse("cross_attention_layers", "must leave layers that text goes through")
    heads, inner = heads_of(fields), gated(fields)
    projected = 2 * width * heads.head_dim * (heads.heads + heads.kv_heads) + 2 * heads.head_dim
    each = projected + 3 * width * inner.inner + 2 * width + 2
    found = decoder(fields, ((Layer(heads, inner), layers - crossed),))
    return replace(found, towers=crossed * each + _IMAGE_TOKENS * width)
