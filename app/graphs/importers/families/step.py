"""Step-3.5 and 3.7 Flash (StepFun, 2026): one layer of all keys to three with a window, dense layers first."""

from __future__ import annotations

from dataclasses import replace

from app.graphs.importers.families.config_fields import MOST_EXPERTS, Fields
from app.graphs.importers.families.gpt_oss import WINDOWED
from app.graphs.importers.families.llama import decoder, gated, grouped, heads_of
from app.graphs.importers.families.mixtures import top_k
from app.graphs.transformers.architecture import Architecture, Experts, FeedForward, Layer


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
