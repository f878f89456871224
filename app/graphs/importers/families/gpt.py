"""Decoders with learned positions: GPT-2 (GPT-3's sizes too) and OPT."""

from __future__ import annotations

from app.graphs.importers.families.config_fields import Fields
from app.graphs.importers.families.decoder import causal_head
from app.graphs.transformers.architecture import Architecture, Attention, Embedding, FeedForward, Layer, Stack
from app.graphs.transformers.row_writer import ACTIVATIONS

# Unused first rows of OPT's position table (padding, as in fairseq).
_OPT_OFFSET = 2


def gpt_bigcode(fields: Fields) -> Architecture:
    """StarCoder and SantaCoder (BigCode, 2023): GPT-2 with one head of keys and values."""
    shared = fields.flag("multi_query", default=True)
    return gpt2(fields.having(activation_function="gelu_pytorch_tanh"), kv_heads=1 if shared else 0)


def gpt2(fields: Fields, kv_heads: int = 0) -> Architecture:
    """GPT-2 (Radford et al. 2019); `kv_heads` of keys and values, 0: as many as of queries."""
    width = fields.size("n_embd", "hidden_size")
    heads = fields.size("n_head", "num_attention_heads")
    vocabulary, positions = fields.size("vocab_size"), fields.size("n_positions", "n_ctx", "max_position_embeddings")
    activation = fields.word("activation_function", choices=ACTIVATIONS, default="gelu_new")
    attention = Attention(
        heads, kv_heads or heads, fields.whole("n_head", width, heads, "n_embd"), one_linear=True, bias=True,
        out_bias=True,
        scale="divided" if fields.flag("scale_attn_weights", default=True) else "none", mask="selected",
        copied="batched",
    )  # fmt: skip
    inner = FeedForward(fields.size("n_inner", default=4 * width), activation, bias=True)
    embedding = Embedding(width, vocabulary, positions, positions, drops=True)
    layers = fields.layers("n_layer", "num_hidden_layers")
    return Architecture(
        (Stack(width, embedding, ((Layer(attention, inner), layers),), "layer_norm"),),
        causal_head(fields, vocabulary, tied=True),
        drops=fields.share("resid_pdrop", default=0.1) > 0.0,
        drops_attention=fields.share("attn_pdrop", default=0.1) > 0.0,
    )


def opt(fields: Fields) -> Architecture:
    """OPT (Zhang et al. 2022)."""
    width, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    vocabulary, positions = fields.size("vocab_size"), fields.size("max_position_embeddings", default=2048)
    bias = fields.flag("enable_bias", default=True)
    before = fields.flag("do_layer_norm_before", default=True)
    attention = Attention(
        heads, heads, fields.whole("num_attention_heads", width, heads, "hidden_size"), bias=bias, out_bias=bias,
        scale="queries", floored=True, copied="always",
    )  # fmt: skip
    activation = fields.word("activation_function", choices=ACTIVATIONS, default="relu")
    inner = FeedForward(fields.size("ffn_dim"), activation, bias=bias)
    embedding = Embedding(
        fields.size("word_embed_proj_dim", default=width), vocabulary, positions + _OPT_OFFSET, positions
    )
    layer = Layer(attention, inner, "pre" if before else "post")
    final = before and not fields.flag("_remove_final_layer_norm", default=False)
    layers = fields.layers("num_hidden_layers")
    return Architecture(
        (Stack(width, embedding, ((layer, layers),), "layer_norm", final_norm=final),),
        causal_head(fields, vocabulary, tied=fields.flag("tie_word_embeddings", default=True)),
        drops=fields.share("dropout", default=0.1) > 0.0,
        drops_attention=fields.share("attention_dropout", default=0.0) > 0.0,
    )
