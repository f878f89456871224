"""Gemma 1 to 4 (Google, 2024 to 2026): scaled embeddings, wide heads, tied logits."""

from __future__ import annotations

from dataclasses import replace

from app.graphs.importers.families.config_fields import MOST_EXPERTS, Fields
from app.graphs.importers.families.decoder import causal_head
from app.graphs.importers.families.gpt_oss import WINDOWED
from app.graphs.importers.families.llama import gated, grouped, heads_of
from app.graphs.importers.families.mixtures import top_k
from app.graphs.transformers.architecture import (
    AltUp,
    Architecture,
    Attention,
    Embedding,
    Experts,
    FeedForward,
    Layer,
    LayerInputs,
    Stack,
)
from app.graphs.transformers.row_writer import ACTIVATIONS


def gemma(fields: Fields) -> Architecture:
    """Gemma 1: Llama's layer."""
    bias = fields.flag("attention_bias", default=False)
    layer = Layer(replace(heads_of(fields), bias=bias, out_bias=bias), gated(fields, default="gelu_pytorch_tanh"))
    return _decoder(fields, ((layer, fields.layers("num_hidden_layers")),))


def gemma2(fields: Fields) -> Architecture:
    """Gemma 2: norms on both sides, capped scores, every second layer with a window."""
    heads = replace(heads_of(fields), softcap=fields.present("attn_logit_softcapping", default=True))
    return _alternating(fields, heads, pattern=2)


def gemma3(fields: Fields) -> Architecture:
    """Gemma 3's text part: norms per head, five layers with a window to one without."""
    heads = replace(heads_of(fields), head_norm=True, softcap=fields.present("attn_logit_softcapping", default=False))
    return _alternating(fields, heads, pattern=fields.size("sliding_window_pattern", default=6))


def gemma4(fields: Fields) -> Architecture:
    """Gemma 4's text part: layers of all keys have wider heads, fewer of keys, and may take keys as values.

    In the small ones, layers have inputs of their own, and the last take earlier layers' keys (then with wider parts).
    """
    layers = fields.layers("num_hidden_layers")
    local = fields.kinds("layer_types", WINDOWED, layers) or [(k + 1) % 6 != 0 for k in range(layers)]
    window = replace(heads_of(fields), head_norm=True, window=fields.size("sliding_window", default=512))
    size = fields.size("global_head_dim", default=window.head_dim)
    both = fields.flag("attention_k_eq_v", default=False)
    shared = fields.size("num_global_key_value_heads", default=window.kv_heads) if both else window.kv_heads
    fields.whole("num_global_key_value_heads", window.heads, shared, "num_attention_heads")
    heads = replace(window, kv_heads=shared, head_dim=size, rotary=size, window=0, keys_as_values=both)
    own = layers - fields.size("num_kv_shared_layers", default=0, least=0, most=layers - 1)
    inner: FeedForward | Experts = gated(fields, default="gelu_pytorch_tanh")
    wide = inner
    if isinstance(inner, FeedForward) and fields.flag("use_double_wide_mlp", default=False):
        wide = replace(inner, inner=2 * inner.inner)
    if fields.flag("enable_moe_block", default=False):
        inner = wide = _experts(fields, gated(fields, default="gelu_pytorch_tanh"))
    parts = grouped(
        Layer(replace(window if near else heads, keys_from_earlier=k >= own), inner if k < own else wide, "sandwich")
        for k, near in enumerate(local)
    )
    return _with_inputs(fields, _decoder(fields, parts), default=0)


def gemma3n(fields: Fields) -> Architecture:
    """Gemma 3n's text part: every layer has an input of its own, one of four streams is computed (AltUp)."""
    layers = fields.layers("num_hidden_layers")
    local = fields.kinds("layer_types", WINDOWED, layers) or [(k + 1) % 5 != 0 for k in range(layers)]
    heads = replace(heads_of(fields), head_norm=True)
    window = replace(heads, window=fields.size("sliding_window", default=512))
    own = layers - fields.size("num_kv_shared_layers", default=min(15, layers - 1), least=0, most=layers - 1)
    width = fields.given("intermediate_size")
    inner = (
        (fields.sizes("intermediate_size", layers) or [])
        if isinstance(width, list)
        else [fields.size("intermediate_size")] * layers
    )
    if not all(inner):
        fields.refuse("intermediate_size", "must hold positive numbers")
    activation = fields.word("hidden_activation", choices=ACTIVATIONS, default="gelu_pytorch_tanh")
    parts = grouped(
        Layer(
            replace(window if near else heads, keys_from_earlier=k >= own),
            FeedForward(inner[k], activation, gated=True),
            "sandwich",
        )
        for k, near in enumerate(local)
    )
    found = _with_inputs(fields, _decoder(fields, parts), default=256)
    altup = AltUp(fields.size("altup_num_inputs", default=4, least=2, most=64), fields.size("laurel_rank", default=64))
    return replace(found, stacks=(replace(found.stacks[0], altup=altup),))


def _with_inputs(fields: Fields, found: Architecture, default: int) -> Architecture:
    """Return the decoder with inputs of every layer, if the configuration has them."""
    size = fields.size("hidden_size_per_layer_input", default=default, least=0)
    if not size:
        return found
    rows = fields.size("vocab_size_per_layer_input", default=262144)
    return replace(found, stacks=(replace(found.stacks[0], layer_inputs=LayerInputs(rows, size)),))


def _experts(fields: Fields, always: FeedForward) -> Experts:
    """Return Gemma 4's experts, beside which the dense part runs as a shared one."""
    count = fields.size("num_experts", most=MOST_EXPERTS)
    each = replace(always, inner=fields.size("moe_intermediate_size"))
    return Experts(count, top_k(fields, count, default=8), each, shared=always)


def _alternating(fields: Fields, heads: Attention, pattern: int) -> Architecture:
    """Return layers with a sliding window, and every `pattern`-th without, unless `layer_types` lists them."""
    layers = fields.layers("num_hidden_layers")
    local = fields.kinds("layer_types", WINDOWED, layers)
    with_window = sum(local) if local is not None else layers - layers // pattern
    bias = fields.flag("attention_bias", default=False)
    heads = replace(heads, bias=bias, out_bias=bias)
    inner = gated(fields, default="gelu_pytorch_tanh")
    window = replace(heads, window=fields.size("sliding_window", default=4096))
    both = ((Layer(window, inner, "sandwich"), with_window), (Layer(heads, inner, "sandwich"), layers - with_window))
    return _decoder(fields, tuple(part for part in both if part[1]))


def _decoder(fields: Fields, layers: tuple[tuple[Layer, int], ...]) -> Architecture:
    width, vocabulary = fields.size("hidden_size"), fields.size("vocab_size")
    tied = fields.flag("tie_word_embeddings", default=True)
    capped = fields.present("final_logit_softcapping", default=fields.model_type == "gemma2")
    return Architecture(
        (Stack(width, Embedding(width, vocabulary, scaled=True), layers, "rms_norm"),),
        causal_head(fields, vocabulary, tied=tied, softcap=capped),
        drops_attention=fields.share("attention_dropout", default=0.0) > 0.0,
    )
