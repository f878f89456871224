"""Decoders with RMS norms, rotary positions and a gated feed-forward part: Llama and similar models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from app.graphs.importers.families.config_fields import Fields
from app.graphs.importers.families.decoder import causal_head
from app.graphs.transformers.architecture import Architecture, Attention, Embedding, FeedForward, Layer, Stack
from app.graphs.transformers.row_writer import ACTIVATIONS


def heads_of(fields: Fields) -> Attention:
    """Return the attention of a configuration, in which `head_dim` and `num_key_value_heads` are optional."""
    width, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    shared = fields.size("num_key_value_heads", default=heads)
    fields.whole("num_key_value_heads", heads, shared, "num_attention_heads")
    given = fields.given("head_dim") is not None
    size = fields.size("head_dim") if given else fields.whole("num_attention_heads", width, heads, "hidden_size")
    return Attention(heads, shared, size, rotary=size, copied="batched")


def gated(
    fields: Fields,
    size: str = "intermediate_size",
    *,
    bias: bool = False,
    one_linear: bool = False,
    default: str = "silu",
) -> FeedForward:
    """Return a gated feed-forward part; its inner features are the field `size`."""
    activation = fields.word("hidden_activation", "hidden_act", choices=ACTIVATIONS, default=default)
    return FeedForward(fields.size(size), activation, True, bias, one_linear)


def decoder(fields: Fields, layers: tuple[tuple[Layer, int], ...]) -> Architecture:
    """Return a decoder of embedding, layers, a final norm and logits."""
    width, vocabulary = fields.size("hidden_size"), fields.size("vocab_size")
    tied = fields.flag("tie_word_embeddings", default=False)
    stack = Stack(width, Embedding(width, vocabulary), layers, "rms_norm")
    return Architecture(
        (stack,),
        causal_head(fields, vocabulary, tied=tied),
        drops_attention=fields.share("attention_dropout", default=0.0) > 0.0,
    )


def grouped(layers: Iterable[Layer]) -> tuple[tuple[Layer, int], ...]:
    """Return each distinct layer with its number of occurrences, in the order of their first."""
    return tuple(Counter(layers).items())


def llama(fields: Fields) -> Architecture:
    """Llama 2 and 3 (Touvron et al. 2023)."""
    bias = fields.flag("attention_bias", default=False)
    heads = replace(heads_of(fields), bias=bias, out_bias=bias)
    return _dense(fields, heads, bias=fields.flag("mlp_bias", default=False))


def mistral(fields: Fields) -> Architecture:
    """Mistral (Jiang et al. 2023): a sliding window of 4,096 by default, none if the field is null."""
    window = fields.size("sliding_window", default=0 if "sliding_window" in fields.config else 4096)
    return _dense(fields, replace(heads_of(fields), window=window))


def qwen(fields: Fields) -> Architecture:
    """Qwen 1: one linear layer with biases for queries, keys and values; `intermediate_size` is of gate and up both."""
    inner = fields.whole("intermediate_size", fields.size("intermediate_size"), 2, "intermediate_size")
    heads = replace(heads_of(fields.named({"head_dim": "kv_channels"})), bias=True, one_linear=True)
    layer = Layer(heads, FeedForward(inner, "silu", gated=True))
    return decoder(fields, ((layer, fields.layers("num_hidden_layers")),))


def qwen2(fields: Fields) -> Architecture:
    """Qwen2 and 2.5: biases of queries, keys and values."""
    return _windowed(fields, replace(heads_of(fields), bias=True))


def qwen3(fields: Fields) -> Architecture:
    """Qwen3: queries and keys normalised per head."""
    bias = fields.flag("attention_bias", default=False)
    return _windowed(fields, replace(heads_of(fields), bias=bias, out_bias=bias, head_norm=True))


def seed_oss(fields: Fields) -> Architecture:
    """Seed-OSS (ByteDance, 2025): biases of queries, keys and values, and by choice of the output."""
    bias, out = fields.flag("attention_bias", default=True), fields.flag("attention_out_bias", default=False)
    return _dense(
        fields, replace(heads_of(fields), bias=bias, out_bias=out), bias=fields.flag("mlp_bias", default=False)
    )


def hunyuan(fields: Fields) -> Architecture:
    """Hunyuan, dense (Tencent, 2025): queries and keys normalised per head."""
    bias = fields.flag("attention_bias", default=False)
    normed = fields.flag("use_qk_norm", default=True)
    return _dense(fields, replace(heads_of(fields), bias=bias, out_bias=bias, head_norm=normed))


def ministral(fields: Fields) -> Architecture:
    """Ministral: layers with a window and without, as `layer_types` says; without it all have the window."""
    layers = fields.layers("num_hidden_layers")
    heads, inner = heads_of(fields), gated(fields)
    window = replace(heads, window=fields.size("sliding_window", default=4096))
    local = fields.kinds("layer_types", {"sliding_attention": True, "full_attention": False}, layers)
    windowed = local or [fields.config.get("sliding_window") is not None] * layers
    return decoder(fields, grouped(Layer(window if near else heads, inner) for near in windowed))


def _dense(fields: Fields, heads: Attention, *, bias: bool = False) -> Architecture:
    layer = Layer(heads, gated(fields, bias=bias))
    return decoder(fields, ((layer, fields.layers("num_hidden_layers")),))


def _windowed(fields: Fields, heads: Attention) -> Architecture:
    """Return Qwen's decoder; with `use_sliding_window`, layers from `max_window_layers` on have a window."""
    if not fields.flag("use_sliding_window", default=False):
        return _dense(fields, heads)
    layers, inner = fields.layers("num_hidden_layers"), gated(fields)
    first = min(fields.size("max_window_layers", default=28, least=0), layers)
    window = replace(heads, window=fields.size("sliding_window", default=4096))
    parts = ((Layer(heads, inner), first), (Layer(window, inner), layers - first))
    return decoder(fields, tuple(part for part in parts if part[1]))
