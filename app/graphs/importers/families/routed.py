"""Decoders with experts that differ from Mixtral's in a few fields: one row of a table each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from app.graphs.importers.families.config_fields import MOST_EXPERTS, Fields
from app.graphs.importers.families.decoders import (
    Flag,
    Trait,
    Variant,
    attention_of,
    has,
    inner_of,
    whole,
    windowed,
)
from app.graphs.importers.families.llama import grouped
from app.graphs.importers.families.mixtures import top_k
from app.graphs.transformers.architecture import Architecture, Experts, FeedForward, Layer

_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")


_LLAMA = Variant()


@dataclass(frozen=True, slots=True)
class Mixture:
    """What sets a mixture of experts apart.

    variant      that of a dense decoder
    each         field with the inner features of an expert
    top_k        experts per token where the configuration does not say
    dense_first  field with the number of layers without experts at the beginning, and its value if the field is absent
    shared       field with the number of experts that process every token; or, with `shared_is_size`, their inner
                 features
    router_bias  the router has a bias per expert
    gated        attention's output is multiplied by a gate
    """

    variant: Variant = _LLAMA
    each: str = "moe_intermediate_size"
    top_k: int = 8
    dense_first: tuple[str, int] = ("", 0)
    shared: str = ""
    shared_is_size: bool = False
    router_bias: Trait = False
    jitter: bool = False
    gated: bool = False


_HEAD_NORMS = Variant(head_norm=True, inner_bias=False)
_AFTER_DENSE = ("first_k_dense_replace", 0)
_LING = Mixture(
    Variant(bias=Flag("use_qkv_bias"), out_bias=Flag("use_bias"), inner_bias=Flag("use_bias"), one_linear=True),
    dense_first=_AFTER_DENSE, shared="num_shared_experts", top_k=6,
)  # fmt: skip

MIXTURES: Mapping[str, Mixture] = {
    "afmoe": Mixture(
        replace(_HEAD_NORMS, order="sandwich", windows="types", window=1024), dense_first=("num_dense_layers", 1),
        shared="num_shared_experts", router_bias=True, gated=True,
    ),
    "bailing_moe": _LING,
    "bailing_moe_v2": replace(
        _LING, variant=replace(_LING.variant, head_norm=Flag("use_qk_norm", default=True)),
        router_bias=Flag("moe_router_enable_expert_bias", default=True), top_k=8,
    ),
    "deepseek": Mixture(dense_first=_AFTER_DENSE, shared="n_shared_experts", top_k=6),
    "dots1": Mixture(_HEAD_NORMS, dense_first=_AFTER_DENSE, shared="n_shared_experts", router_bias=True),
    "exaone_moe": Mixture(
        replace(_HEAD_NORMS, windows="types", bias=False, out_bias=False), dense_first=("first_k_dense_replace", 1),
        shared="num_shared_experts", router_bias=True,
    ),
    "granitemoe": Mixture(each="intermediate_size", top_k=2),
    "granitemoeshared": Mixture(
        each="intermediate_size", top_k=2, shared="shared_intermediate_size", shared_is_size=True
    ),
    "olmoe": Mixture(Variant(whole_norm=True), each="intermediate_size"),
    "phimoe": Mixture(
        Variant(norm="layer_norm", head_bias=Flag("lm_head_bias"), windows="all"), each="intermediate_size", top_k=2,
        jitter=True,
    ),
    "solar_open": Mixture(
        Variant(inner_bias=False), dense_first=_AFTER_DENSE, shared="n_shared_experts", router_bias=True
    ),
}  # fmt: skip


def routed_decoder(fields: Fields) -> Architecture:
    """Return the decoder of a configuration whose model type is in the table."""
    return mixed_decoder(fields, MIXTURES[fields.model_type])


def mixed_decoder(fields: Fields, spec: Mixture) -> Architecture:
    """Return a decoder of dense layers first, then layers with experts."""
    variant, layers = spec.variant, fields.layers("num_hidden_layers")
    heads = replace(attention_of(fields, variant), gated=spec.gated)
    near = windowed(fields, variant, layers)
    window = replace(heads, window=fields.size("sliding_window", default=variant.window)) if any(near) else heads
    name, usual = spec.dense_first
    dense = fields.size(name, default=min(usual, layers), least=0, most=layers) if name else 0
    inner = inner_of(fields, variant) if dense else None
    experts = _experts(fields, spec)
    parts = grouped(
        Layer(window if close else heads, inner if k < dense else experts, variant.order)
        for k, close in enumerate(near)
    )
    return whole(fields, variant, parts)


def _experts(fields: Fields, spec: Mixture) -> Experts:
    count = fields.size(*_COUNTS, most=MOST_EXPERTS)
    each = inner_of(fields, spec.variant, spec.each)
    inner = fields.size(spec.shared, default=0, least=0) if spec.shared else 0
    shared = inner if spec.shared_is_size else inner * each.inner
    return Experts(
        count,
        top_k(fields, count, default=spec.top_k),
        each,
        shared=FeedForward(shared, each.activation, gated=True) if shared else None,
        router_bias=has(fields, spec.router_bias),
        jitter=spec.jitter and fields.present("router_jitter_noise", default=False),
    )
