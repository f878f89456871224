"""Step-3 (StepFun, 2025), whose queries share a projection; Step-3.5 and 3.7 Flash (2026), with windows."""

from __future__ import annotations

from dataclasses import replace

from app.graphs.importers.families.config_fields import MOST_EXPERTS, Fields
from app.graphs.importers.families.gpt_oss import WINDOWED
from app.graphs.importers.families.llama import decoder, gated, grouped, heads_of
from app.graphs.importers.families.mixtures import top_k
from app.graphs.transformers.architecture import Architecture, Attention, Experts, FeedForward, Layer


def step3p7(fields: Fields) -> Architecture:
    """Step-3.7 Flash; without `layer_types` the first layer of every four sees all keys."""
    heads = replace(heads_of(fields), head_norm=True)
    window = replace(heads, window=fields.size("sliding_window", default=512))
    layers = fields.layers("num_hidden_layers")
    local = fields.kinds("layer_types", WINDOWED, layers) or [k % 4 != 0 for k in range(layers)]
    dense = fields.size("first_k_dense_replace", default=0, least=0, most=layers)
    count = fields.size("num_experts", most=MOST_EXPERTS)
    each, shared = gated(fields, "moe_intermediate_size"), fields.size("share_expert_dim", default=0, least=0)
    experts = Experts(
        count,
        top_k(fields, count, default=8),
        each,
        shared=FeedForward(shared, each.activation, gated=True) if shared else None,
        router_bias=fields.flag("use_moe_router_bias", default=True),
    )
    return decoder(
        fields,
        grouped(
            Layer(window if windowed else heads, gated(fields) if k < dense else experts)
            for k, windowed in enumerate(local)
        ),
    )


def step3(fields: Fields) -> Architecture:
    """Step-3's text part: one head of keys, queries from `share_q_dim` features, experts in `moe_layers_enum`."""
    layers, heads = fields.layers("num_hidden_layers"), fields.size("num_attention_heads")
    shared, size = fields.size("num_attention_groups", default=1), fields.size("head_dim")
    fields.whole("num_attention_groups", heads, shared, "num_attention_heads")
    attention = Attention(heads, shared, size, rotary=size, query_rank=fields.size("share_q_dim"))
    count = fields.size("moe_num_experts", most=MOST_EXPERTS)
    each = gated(fields, "moe_intermediate_size")
    always = replace(each, inner=fields.size("share_expert_dim"))
    experts = Experts(count, fields.size("moe_top_k", default=min(3, count), most=count), each, shared=always)
    routed = _layer_numbers(fields, layers)
    inner = gated(fields)
    return decoder(fields, grouped(Layer(attention, experts if k in routed else inner) for k in range(layers)))


def _layer_numbers(fields: Fields, layers: int) -> set[int]:
    """Return the layers with experts, which are a list or, as published, a text of numbers between commas."""
    given = fields.given("moe_layers_enum")
    if isinstance(given, str):
        numbers = given.split(",")
        if not all(number.strip().isdecimal() for number in numbers):
            fields.refuse("moe_layers_enum", "must be layer numbers between commas")
        given = [int(number[:9]) for number in numbers]
    if given is None:
        return set(range(min(4, layers), max(layers - 1, 0)))
    return Fields({"moe_layers_enum": given}, fields.model_type, fields.within).indices("moe_layers_enum", layers)
