"""Decoders by model type: a table of traits (seed_data/model_types.json), and the parts that they describe.

A row holds what sets a type apart from a decoder with RMS norms, rotary positions, a gated feed-forward part and no
biases. `like` names another row, whose traits it takes; rows that start with an underscore are only taken from. Sources
are the modules of Hugging Face transformers, or those beside the published weights. Types whose layers are of other
parts have functions in decoder_families.py and hybrids.py, which read the same rows.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal

import msgspec

from app.config import SEED_DATA
from app.networks.importers.families.config_fields import MOST_EXPERTS, MOST_SIZE, Fields, causal_head
from app.networks.transformers.architecture import (
    Architecture,
    Attention,
    Embedding,
    Experts,
    FeedForward,
    Latent,
    Layer,
    NormKind,
    Order,
    Stack,
)

# A trait of all models of a type; or the field that decides it, and its value where that is absent.
Trait = bool | tuple[str, bool]
WINDOWED = {"sliding_attention": True, "full_attention": False}


class Windows(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which layers have a sliding window.

    layers  all; those from `max_window_layers` on, with `use_sliding_window` (Qwen); or those that `layer_types` lists
    every   without a list, layer k has none if k + `first` is divisible by this number, or by this field with its
            default; 0: all have one if the configuration gives its size
    size    of the window, if the configuration gives none
    null_is_none  without a window is also each layer of a configuration whose size is null
    """

    layers: Literal["all", "last", "listed"]
    every: int | tuple[str, int] = 4
    first: int = 1
    size: int = 4096
    null_is_none: bool = False


class Mixture(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Experts.

    count        fields with their number; `usual_count` if all are absent, 0: required
    each         field with the inner features of an expert
    per_token    fields with the experts per token, and `top_k` where all are absent
    bias         biases of an expert, if not as those of the dense part
    shared       field with the number of experts that process every token, `most_shared` at most; with
                 `shared_is_size` with their features
    router_bias  the router has a bias per expert
    clamped      experts clamp their gate and what it multiplies
    groups       field with the groups of experts of which the router chooses some first, and its default
    of_groups    field with how many it chooses, and its default
    latent       field with the features that tokens are projected to before the experts
    optional     a configuration without a number of experts has none
    dense_first  layers without experts at the beginning: field and default
    last, step, dense  fields with the last layer with experts, with the step between them, and with exceptions
    every        field that must be 1
    """

    count: tuple[str, ...]
    usual_count: int = 0
    each: str = "moe_intermediate_size"
    per_token: tuple[str, ...] = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts")
    top_k: int = 8
    bias: Trait | None = None
    shared: str = ""
    most_shared: int = MOST_EXPERTS
    shared_is_size: bool = False
    shared_gate: bool = False
    router_bias: Trait = False
    clamped: bool = False
    groups: tuple[str, int] | None = None
    of_groups: tuple[str, int] = ("topk_group", 1)
    latent: str = ""
    jitter: bool = False
    optional: bool = False
    dense_first: tuple[str, int] | None = None
    last: str = ""
    step: str = ""
    dense: str = ""
    every: str = ""


class Traits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Traits of a model type.

    names        the configuration's own names of fields, by the usual ones
    refused      flags that must be false, and what is said of them otherwise
    parallel     attention and feed-forward part run beside one another, as `abreast` says
    bias, out_bias, inner_bias, head_bias  biases of queries, keys and values; of the output projection; of the
                 feed-forward part; of the logits
    rotated      whether heads are rotated, or the field with the share of a head that is, and its default; with
                 `rotary_dim` a field of this name goes before it
    head_norm, whole_norm  queries and keys are normalised per head, or over all heads together
    one_linear, one_gate  queries, keys and values come from one linear layer; gate and up projection do
    alibi        scores get a bias by distance, in place of rotary positions
    score_cap, logit_cap  scores, and logits, pass through a scaled tanh
    latent       multi-head latent attention (DeepSeek)
    activation   where the configuration has none
    inner_default  inner features in widths, where the configuration has none; `halved_inner`: it counts them twice
    tied         the logits' weights are the embedding's where the configuration does not say
    drops, attention_drops, embedding_drops  fields with the rates of dropout
    """

    names: Mapping[str, str] = {}
    refused: Mapping[str, str] = {}
    norm: NormKind = "rms_norm"
    order: Order = "pre"
    parallel: Trait = False
    abreast: Order = "parallel"
    bias: Trait = False
    out_bias: Trait = False
    inner_bias: Trait = False
    head_bias: Trait = False
    rotated: bool | tuple[str, float] = True
    rotary_dim: bool = False
    head_norm: Trait = False
    whole_norm: Trait = False
    one_linear: bool = False
    one_gate: bool = False
    alibi: Trait = False
    sinks: bool = False
    gated_attention: bool = False
    score_cap: Trait = False
    logit_cap: Trait = False
    latent: bool = False
    windows: Windows | None = None
    activation: str = "silu"
    gated: bool = True
    inner_default: int = 0
    halved_inner: bool = False
    experts: Mixture | None = None
    tied: bool = False
    embedding_norm: bool = False
    scaled_embedding: bool = False
    scaled_logits: bool = False
    drops: tuple[str, ...] = ()
    attention_drops: tuple[str, ...] = ("attention_dropout",)
    embedding_drops: str = ""


def _types() -> Mapping[str, Traits]:
    """Return the table, each row with the traits of those that it is like."""
    given: dict[str, dict[str, Any]] = json.loads((SEED_DATA / "model_types.json").read_text("utf-8"))

    def whole(name: str) -> dict[str, Any]:
        own = dict(given[name])
        like = whole(own.pop("like")) if "like" in own else {}
        objects = {key: like[key] | own[key] for key in ("experts", "windows") if key in like and key in own}
        return like | own | objects

    return {name: msgspec.convert(whole(name), Traits) for name in given if not name.startswith("_")}


TYPES = _types()


def opened(fields: Fields) -> tuple[Fields, Traits]:
    """Return the fields of a configuration by their usual names, and the traits of its model type."""
    traits = TYPES[fields.model_type]
    named = fields.named(traits.names)
    for field, why in traits.refused.items():
        if named.flag(field, default=False):
            named.refuse(field, why)
    return named, traits


def decoder(fields: Fields) -> Architecture:
    """Return the decoder of a configuration whose model type has no function of its own."""
    return of_traits(*opened(fields))


def of_traits(fields: Fields, traits: Traits) -> Architecture:
    """Return a decoder of these traits."""
    heads, layers = attention_of(fields, traits), fields.layers("num_hidden_layers")
    near = windowed(fields, traits, layers)
    window = in_window(fields, traits, heads) if any(near) else heads
    mixed = mixed_layers(fields, traits, layers)
    inner = inner_of(fields, traits) if not all(mixed) else None
    needs = traits.experts is not None and (any(mixed) or not traits.experts.optional)
    experts = experts_of(fields, traits) if needs else None
    order = traits.abreast if has(fields, traits.parallel) else traits.order
    parts = (
        Layer(window if close else heads, experts if routed else inner, order)
        for close, routed in zip(near, mixed, strict=True)
    )
    return whole(fields, traits, grouped(parts))


def heads_of(fields: Fields) -> Attention:
    """Return plain attention, in whose configuration `head_dim` and `num_key_value_heads` are optional."""
    width, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    shared = fields.size("num_key_value_heads", default=heads)
    fields.whole("num_key_value_heads", heads, shared, "num_attention_heads")
    given = fields.given("head_dim") is not None
    size = fields.size("head_dim") if given else fields.whole("num_attention_heads", width, heads, "hidden_size")
    return Attention(heads, shared, size, rotary=size, copied="batched")


def attention_of(fields: Fields, traits: Traits) -> Attention:
    """Return the attention of a layer without a window."""
    bias, out_bias = has(fields, traits.bias), has(fields, traits.out_bias)
    if traits.latent:
        return latent_heads(fields)
    heads, alibi = heads_of(fields), has(fields, traits.alibi)
    rotary = _rotated(fields, traits, heads.head_dim)
    return replace(
        heads,
        rotary=0 if alibi else rotary,
        bias=bias,
        out_bias=out_bias,
        head_norm=has(fields, traits.head_norm),
        whole_norm=has(fields, traits.whole_norm),
        one_linear=traits.one_linear,
        biased="heads_first" if alibi else "no",
        softcap=_capped(fields, traits.score_cap),
        sinks=traits.sinks,
        gated=traits.gated_attention,
    )


def _rotated(fields: Fields, traits: Traits, size: int) -> int:
    """Return the elements of a head of `size` that are rotated."""
    if traits.rotated is False:
        return 0
    if traits.rotated is True:
        return fields.size("rotary_dim", default=size) if traits.rotary_dim else size
    turned = int(size * fields.share(traits.rotated[0], default=traits.rotated[1]))
    return min(fields.size("rotary_dim", default=turned, least=0), size) if traits.rotary_dim else turned


def latent_heads(fields: Fields) -> Attention:
    """Return the latent attention of a configuration."""
    heads = fields.size("num_attention_heads")
    bias = fields.flag("attention_bias", default=False)
    latent = Latent(
        query=fields.size("q_lora_rank", default=0),
        keys=fields.size("kv_lora_rank"),
        plain=fields.size("qk_nope_head_dim"),
        value=fields.size("v_head_dim"),
    )
    rotary = fields.size("qk_rope_head_dim")
    return Attention(heads, heads, latent.plain, bias=bias, out_bias=bias, rotary=rotary, latent=latent)


def windowed(fields: Fields, traits: Traits, layers: int) -> list[bool]:
    """Return whether each layer has a window."""
    windows = traits.windows
    stated = fields.given("sliding_window") is not None
    if windows is None or (windows.null_is_none and not stated and "sliding_window" in fields.config):
        return [False] * layers
    if windows.layers == "all":
        return [stated or (windows.size > 0 and "sliding_window" not in fields.config)] * layers
    if windows.layers == "last":
        if not fields.flag("use_sliding_window", default=False):
            return [False] * layers
        first = fields.size("max_window_layers", default=28, least=0)
        return [k >= first for k in range(layers)]
    every = windows.every if isinstance(windows.every, int) else fields.size(windows.every[0], default=windows.every[1])
    usual = [(k + windows.first) % every != 0 for k in range(layers)] if every else [stated] * layers
    return fields.kinds("layer_types", WINDOWED, layers) or usual


def in_window(fields: Fields, traits: Traits, heads: Attention) -> Attention:
    """Return the attention of a layer with a window."""
    return replace(heads, window=fields.size("sliding_window", default=traits.windows.size if traits.windows else None))


def inner_of(fields: Fields, traits: Traits, size: str = "intermediate_size", bias: Trait | None = None) -> FeedForward:
    """Return a feed-forward part, whose inner features are the field `size`, with the traits' biases or others."""
    activation = fields.activation("hidden_activation", "hidden_act", default=traits.activation)
    usual = traits.inner_default * fields.size("hidden_size") if traits.inner_default else None
    inner = fields.size(size, default=usual)
    if traits.halved_inner:
        inner = fields.whole(size, inner, 2, size)
    biased = has(fields, traits.inner_bias if bias is None else bias)
    return FeedForward(inner, activation, traits.gated, biased, traits.one_gate)


def mixed_layers(fields: Fields, traits: Traits, layers: int) -> list[bool]:
    """Return whether each layer has experts."""
    mixture = traits.experts
    if mixture is None:
        return [False] * layers
    name, usual = mixture.dense_first or ("", 0)
    first = fields.size(name, default=min(usual, layers), least=0, most=layers) if name else 0
    if mixture.optional and not fields.size(*mixture.count, default=0, most=MOST_EXPERTS):
        return [False] * layers
    last = fields.size(mixture.last, default=layers - 1, least=-1, most=MOST_EXPERTS) if mixture.last else -1
    last, step = layers - 1 if last < 0 else last, fields.size(mixture.step, default=1) if mixture.step else 1
    dense = fields.indices(mixture.dense, layers) if mixture.dense else set()
    mixed = [first <= k <= last and (k + 1) % step == 0 and k not in dense for k in range(layers)]
    if mixture.every and any(mixed) and fields.size(mixture.every, default=1) != 1:
        fields.refuse(mixture.every, "must be 1: send any other network as a graph")
    return mixed


def experts_of(fields: Fields, traits: Traits) -> Experts:
    """Return the experts of a layer, with the shared ones as one."""
    mixture = traits.experts
    assert mixture is not None
    count = fields.size(*mixture.count, default=mixture.usual_count or None, most=MOST_EXPERTS)
    each = replace(inner_of(fields, traits, mixture.each, mixture.bias), clamped=mixture.clamped)
    groups, of_groups = fields.size(mixture.groups[0], default=mixture.groups[1]) if mixture.groups else 1, 1
    if groups > 1:
        of_groups = fields.size(mixture.of_groups[0], default=min(mixture.of_groups[1], groups), most=groups)
    return Experts(
        count,
        fields.size(*mixture.per_token, default=min(mixture.top_k, count), most=count),
        each,
        shared=_shared(fields, mixture, each),
        shared_gate=mixture.shared_gate,
        router_bias=has(fields, mixture.router_bias),
        groups=groups,
        of_groups=of_groups,
        jitter=mixture.jitter and fields.present("router_jitter_noise", default=False),
        latent=fields.size(mixture.latent, default=0, least=0) if mixture.latent else 0,
    )


def _shared(fields: Fields, mixture: Mixture, each: FeedForward) -> FeedForward | None:
    """Return the expert that processes every token; a configuration with a gate of it has one."""
    if not mixture.shared:
        return None
    if mixture.shared_gate:
        inner = fields.size(mixture.shared)
    elif mixture.shared_is_size:
        inner = fields.size(mixture.shared, default=0, least=0, most=MOST_SIZE)
    else:
        inner = fields.size(mixture.shared, default=0, least=0, most=mixture.most_shared) * each.inner
    return FeedForward(inner, each.activation, each.gated) if inner else None


def grouped(layers: Iterable[Layer]) -> tuple[tuple[Layer, int], ...]:
    """Return each distinct layer with its number of occurrences, in the order of their first."""
    return tuple(Counter(layers).items())


def whole(fields: Fields, traits: Traits, layers: tuple[tuple[Layer, int], ...]) -> Architecture:
    """Return a decoder of an embedding, `layers`, a final norm and logits."""
    width, vocabulary = fields.size("hidden_size"), fields.size("vocab_size")
    tied = fields.flag("tie_word_embeddings", default=traits.tied)
    bias, capped = has(fields, traits.head_bias), _capped(fields, traits.logit_cap)
    head = causal_head(fields, vocabulary, tied=tied, bias=bias, softcap=capped)
    embedding = Embedding(
        width,
        vocabulary,
        norm=traits.embedding_norm,
        scaled=traits.scaled_embedding,
        drops=_drops(fields, (traits.embedding_drops,) if traits.embedding_drops else ()),
    )
    return Architecture(
        (Stack(width, embedding, layers, traits.norm),),
        replace(head, scaled=traits.scaled_logits and head.vocabulary > 0),
        drops=_drops(fields, traits.drops),
        drops_attention=_drops(fields, traits.attention_drops),
    )


def _drops(fields: Fields, names: tuple[str, ...]) -> bool:
    return bool(names) and fields.share(*names, default=0.0) > 0.0


def has(fields: Fields, trait: Trait) -> bool:
    """Return whether a configuration has a trait."""
    return trait if isinstance(trait, bool) else fields.flag(trait[0], default=trait[1])


def _capped(fields: Fields, trait: Trait) -> bool:
    """Return whether a number, which may be null, enables a trait."""
    return trait if isinstance(trait, bool) else fields.present(trait[0], default=trait[1])
