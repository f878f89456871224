"""Phi (Microsoft): Phi 1 and 2 with both parts of a layer in parallel, Phi 3 as Llama with fused linear layers."""

from __future__ import annotations

from dataclasses import replace

from app.graphs.importers.families.config_fields import Fields
from app.graphs.importers.families.decoder import causal_head
from app.graphs.importers.families.llama import decoder, gated, heads_of
from app.graphs.transformers.architecture import Architecture, Embedding, FeedForward, Layer, Stack
from app.graphs.transformers.row_writer import ACTIVATIONS


def phi(fields: Fields) -> Architecture:
    """Phi 1, 1.5 and 2."""
    width, vocabulary = fields.size("hidden_size"), fields.size("vocab_size")
    heads = heads_of(fields)
    turned = int(heads.head_dim * fields.share("partial_rotary_factor", default=0.5))
    if fields.flag("qk_layernorm", default=False):
        fields.refuse("qk_layernorm", "must be false: send any other network as a graph")
    attention = replace(heads, bias=True, out_bias=True, rotary=turned)
    activation = fields.word("hidden_act", choices=ACTIVATIONS, default="gelu_new")
    layer = Layer(attention, FeedForward(fields.size("intermediate_size"), activation, bias=True), "parallel")
    tied = fields.flag("tie_word_embeddings", default=False)
    layers = ((layer, fields.layers("num_hidden_layers")),)
    return Architecture(
        (
            Stack(
                width,
                Embedding(width, vocabulary, drops=fields.share("embd_pdrop", default=0.0) > 0.0),
                layers,
                "layer_norm",
            ),
        ),
        causal_head(fields, vocabulary, tied=tied, bias=True),
        drops=fields.share("resid_pdrop", default=0.0) > 0.0,
        drops_attention=fields.share("attention_dropout", default=0.0) > 0.0,
    )


def phi3(fields: Fields) -> Architecture:
    """Phi 3 and 4 (`phi3`): queries, keys and values from one linear, gate and up from another."""
    window = fields.size("sliding_window", default=0)
    heads = heads_of(fields)
    turned = int(heads.head_dim * fields.share("partial_rotary_factor", default=1.0))
    attention = replace(heads, one_linear=True, window=window, rotary=turned)
    layer = Layer(attention, gated(fields, one_linear=True))
    return decoder(fields, ((layer, fields.layers("num_hidden_layers")),))


# Weights of Phi-4-multimodal's encoders of images and sound with their projections, which have one size.
_PHI4_ENCODERS = 441_550_016 + 466_432_256


def phi4mm(fields: Fields) -> Architecture:
    """Phi-4-multimodal: Phi 4 mini, low-rank adapters for images and for sound, and both encoders."""
    found = phi3(fields.having(tie_word_embeddings=True))
    width, inner, heads = fields.size("hidden_size"), fields.size("intermediate_size"), heads_of(fields)
    wide = heads.head_dim * heads.heads
    sides = (
        (width + wide + 2 * heads.head_dim * heads.kv_heads) + (wide + width) + (width + 2 * inner) + (inner + width)
    )
    ranks = sum(fields.inside(name).size("r", default=0) for name in ("vision_lora", "speech_lora"))
    return replace(found, towers=ranks * sides * fields.layers("num_hidden_layers") + _PHI4_ENCODERS)
