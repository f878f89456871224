"""Dense decoders that differ from Llama's in a few fields: one row of a table each.

A row has the names by which a configuration calls the usual fields, and the options of its layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal, NamedTuple

from app.graphs.importers.families.config_fields import Fields
from app.graphs.importers.families.decoder import causal_head
from app.graphs.importers.families.gpt_oss import WINDOWED
from app.graphs.importers.families.llama import grouped, heads_of
from app.graphs.transformers.architecture import (
    Architecture,
    Attention,
    Embedding,
    FeedForward,
    Layer,
    NormKind,
    Order,
    Stack,
)
from app.graphs.transformers.row_writer import ACTIVATIONS


class Flag(NamedTuple):
    """An option that a field of the configuration says, and its value where the field is absent."""

    field: str
    default: bool = False


Trait = bool | Flag
_NONE: Mapping[str, str] = MappingProxyType({})
_ATTENTION_BIAS, _INNER_BIAS = Flag("attention_bias"), Flag("mlp_bias")


@dataclass(frozen=True, slots=True)
class Variant:
    """What sets a decoder apart from Llama's.

    names        own names of usual fields
    bias, out_bias, inner_bias, head_bias  biases of queries, keys and values; of the output projection; of the
                 feed-forward part; of the logits
    parallel     attention and feed-forward part run beside one another, as `abreast` says
    tied         the logits' weights are the embedding's where the configuration does not say
    activation   where the configuration has none
    rotated      field with the share of a head that is rotated, and its value where the field is absent
    head_norm, whole_norm  queries and keys are normalised per head, or all heads together
    windows      which layers have the window: none, all, or as `layer_types` says and without it all but every
                 `full_every`-th; `window` is its size where the configuration has none
    one_linear, one_gate  queries, keys and values come from one linear layer; gate and up projection do
    alibi        scores get a bias by distance, in place of rotary positions
    """

    names: Mapping[str, str] = field(default_factory=lambda: _NONE)
    norm: NormKind = "rms_norm"
    order: Order = "pre"
    parallel: Trait = False
    abreast: Order = "parallel"
    bias: Trait = _ATTENTION_BIAS
    out_bias: Trait = _ATTENTION_BIAS
    inner_bias: Trait = _INNER_BIAS
    head_bias: Trait = False
    tied: bool = False
    activation: str = "silu"
    gated: bool = True
    rotated: tuple[str, float] = ("partial_rotary_factor", 1.0)
    head_norm: Trait = False
    whole_norm: bool = False
    windows: Literal["none", "all", "types"] = "none"
    full_every: int = 4
    window: int = 4096
    one_linear: bool = False
    one_gate: bool = False
    alibi: Trait = False
    embedding_norm: bool = False
    scaled_logits: bool = False
    inner_default: int = 0


_NUMBERED = {"num_hidden_layers": "n_layer", "num_attention_heads": "n_head"}
_GPTJ_NAMES = _NUMBERED | {
    "hidden_size": "n_embd", "intermediate_size": "n_inner", "hidden_act": "activation_function",
}  # fmt: skip
_INTERNLM_BIAS = Flag("bias")
_COMMAND_R = Variant(
    norm="unbiased_layer_norm", parallel=True, tied=True, head_norm=Flag("use_qk_norm"), scaled_logits=True,
    inner_bias=False,
)  # fmt: skip
_GPTJ = Variant(
    names=_GPTJ_NAMES, norm="layer_norm", parallel=True, bias=False, out_bias=False, inner_bias=True, head_bias=True,
    activation="gelu_new", gated=False, inner_default=4,
)  # fmt: skip
_GLM = Variant(
    bias=Flag("attention_bias", default=True), out_bias=False, inner_bias=False,
    rotated=("partial_rotary_factor", 0.5), one_gate=True,
)  # fmt: skip
_CHATGLM_NAMES = {
    "num_hidden_layers": "num_layers", "intermediate_size": "ffn_hidden_size", "head_dim": "kv_channels",
    "num_key_value_heads": "multi_query_group_num", "vocab_size": "padded_vocab_size",
}  # fmt: skip

# By model type. Sources: the modules of Hugging Face transformers, or those beside the published weights.
DECODERS: Mapping[str, Variant] = {
    "apertus": Variant(activation="xielu", gated=False, head_norm=True),
    "apriel": Variant(),
    "arcee": Variant(activation="relu2", gated=False),
    "baichuan": Variant(bias=False, out_bias=False, inner_bias=False, one_linear=True),
    "bloom": Variant(
        names=_NUMBERED, norm="layer_norm", bias=True, out_bias=True, inner_bias=True, tied=True,
        activation="gelu_new", gated=False, one_linear=True, alibi=True, embedding_norm=True, inner_default=4,
    ),
    "chatglm": Variant(
        names=_CHATGLM_NAMES, bias=Flag("add_qkv_bias"), out_bias=Flag("add_bias_linear"),
        inner_bias=Flag("add_bias_linear"), rotated=("partial_rotary_factor", 0.5), one_linear=True, one_gate=True,
    ),
    "codegen": replace(_GPTJ, one_linear=True),
    "cohere": _COMMAND_R,
    "cohere2": replace(_COMMAND_R, head_norm=False, windows="types"),
    "cwm": Variant(windows="types", window=8192, bias=False, out_bias=False),
    "exaone": Variant(
        names={"num_hidden_layers": "num_layers", "hidden_act": "activation_function"},
    ),
    "exaone4": Variant(order="inner", head_norm=True, windows="types", bias=False, out_bias=False, inner_bias=False),
    "glm": _GLM,
    "glm4": replace(_GLM, order="sandwich"),
    "glm4v_text": replace(_GLM, order="sandwich"),
    "gpt_neox": Variant(
        norm="layer_norm", parallel=Flag("use_parallel_residual", default=True), abreast="parallel_normed",
        bias=Flag("attention_bias", default=True), out_bias=Flag("attention_bias", default=True), inner_bias=True,
        activation="gelu", gated=False, rotated=("rotary_pct", 0.25), one_linear=True,
    ),
    "gptj": _GPTJ,
    "granite": Variant(),
    "helium": Variant(),
    "internlm": Variant(bias=_INTERNLM_BIAS, out_bias=_INTERNLM_BIAS, inner_bias=False),
    "internlm2": Variant(bias=_INTERNLM_BIAS, out_bias=_INTERNLM_BIAS, inner_bias=False, one_linear=True),
    "internlm3": Variant(bias=Flag("qkv_bias"), out_bias=_INTERNLM_BIAS, inner_bias=_INTERNLM_BIAS),
    "minicpm": Variant(tied=True),
    "nemotron": Variant(
        norm="layer_norm", activation="relu2", gated=False, rotated=("partial_rotary_factor", 0.5)
    ),
    "olmo": Variant(norm="weightless_layer_norm", inner_bias=False),
    "smollm3": Variant(tied=True),
    "stablelm": Variant(
        norm="layer_norm", parallel=Flag("use_parallel_residual"), bias=Flag("use_qkv_bias"), out_bias=False,
        inner_bias=False, rotated=("partial_rotary_factor", 0.25), head_norm=Flag("qk_layernorm"),
    ),
    "starcoder2": Variant(
        norm="layer_norm", bias=Flag("use_bias", default=True), out_bias=Flag("use_bias", default=True),
        inner_bias=Flag("use_bias", default=True), tied=True, activation="gelu_pytorch_tanh", gated=False,
        windows="all",
    ),
}  # fmt: skip


def dense_decoder(fields: Fields) -> Architecture:
    """Return the decoder of a configuration whose model type is in the table."""
    variant = DECODERS[fields.model_type]
    fields = fields.named(variant.names)
    return of_layers(fields, variant)


def of_layers(fields: Fields, variant: Variant) -> Architecture:
    """Return a decoder of this variant, with the same feed-forward part in every layer."""
    heads, layers = attention_of(fields, variant), fields.layers("num_hidden_layers")
    inner = inner_of(fields, variant)
    order = variant.abreast if has(fields, variant.parallel) else variant.order
    near = windowed(fields, variant, layers)
    window = replace(heads, window=fields.size("sliding_window", default=variant.window)) if any(near) else heads
    parts = grouped(Layer(window if close else heads, inner, order) for close in near)
    return whole(fields, variant, parts)


def attention_of(fields: Fields, variant: Variant) -> Attention:
    """Return the attention of a layer without a window."""
    heads, alibi = heads_of(fields), has(fields, variant.alibi)
    name, share = variant.rotated
    turned = fields.size("rotary_dim", default=int(heads.head_dim * fields.share(name, default=share)), least=0)
    return replace(
        heads,
        rotary=0 if alibi else min(turned, heads.head_dim),
        bias=has(fields, variant.bias),
        out_bias=has(fields, variant.out_bias),
        head_norm=has(fields, variant.head_norm),
        whole_norm=variant.whole_norm,
        one_linear=variant.one_linear,
        biased="heads_first" if alibi else "no",
    )


def inner_of(fields: Fields, variant: Variant, size: str = "intermediate_size") -> FeedForward:
    """Return the feed-forward part, whose inner features are the field `size`."""
    usual = variant.inner_default * fields.size("hidden_size") or None
    activation = fields.word("hidden_act", choices=ACTIVATIONS, default=variant.activation)
    bias = has(fields, variant.inner_bias)
    return FeedForward(fields.size(size, default=usual), activation, variant.gated, bias, variant.one_gate)


def windowed(fields: Fields, variant: Variant, layers: int) -> list[bool]:
    """Return whether each layer has a window."""
    stated = fields.given("sliding_window") is not None
    if variant.windows == "none":
        return [False] * layers
    if variant.windows == "all":
        return [stated] * layers
    if not stated and "sliding_window" in fields.config:
        return [False] * layers
    types = fields.kinds("layer_types", WINDOWED, layers)
    return types or [(k + 1) % variant.full_every != 0 for k in range(layers)]


def whole(fields: Fields, variant: Variant, layers: tuple[tuple[Layer, int], ...]) -> Architecture:
    """Return a decoder of an embedding, `layers`, a final norm and logits."""
    width, vocabulary = fields.size("hidden_size"), fields.size("vocab_size")
    tied = fields.flag("tie_word_embeddings", default=variant.tied)
    head = causal_head(fields, vocabulary, tied=tied, bias=has(fields, variant.head_bias))
    drops = ("hidden_dropout", "resid_pdrop", "residual_dropout")
    return Architecture(
        (Stack(width, Embedding(width, vocabulary, norm=variant.embedding_norm), layers, variant.norm),),
        replace(head, scaled=variant.scaled_logits and head.vocabulary > 0),
        drops=fields.share(*drops, default=0.0) > 0.0,
        drops_attention=fields.share("attention_dropout", "attn_pdrop", default=0.0) > 0.0,
    )


def has(fields: Fields, trait: Trait) -> bool:
    """Return whether a configuration has a trait."""
    return trait if isinstance(trait, bool) else fields.flag(trait.field, default=trait.default)
