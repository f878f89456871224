"""Mamba (Gu and Dao 2023), Jamba (AI21, 2024) and LFM2 (Liquid, 2025): mixers without heads."""

from __future__ import annotations

from dataclasses import replace

from app.graphs.importers.families.config_fields import MOST_EXPERTS, Fields
from app.graphs.importers.families.llama import decoder, gated, grouped, heads_of
from app.graphs.importers.families.mixtures import top_k
from app.graphs.transformers.architecture import Architecture, Experts, FeedForward, Layer, Recurrence

# Features that are split and priced together, as a head of Mamba2.
_HEAD = 64
_MIXERS = {"conv": True, "full_attention": False}


def mamba(fields: Fields) -> Architecture:
    """Mamba and Falcon-Mamba: layers of nothing but a selective scan."""
    width = fields.size("hidden_size", "d_model")
    inner = fields.size("intermediate_size", "d_inner", default=fields.size("expand", default=2) * width)
    rank = -(-width // 16) if fields.given("time_step_rank") in (None, "auto") else fields.size("time_step_rank")
    mixer = _scan(
        fields, inner, state=fields.size("state_size", default=16), taps=fields.size("conv_kernel", default=4),
        rank=rank, bias=fields.flag("use_bias", default=False), filter_bias=fields.flag("use_conv_bias", default=True),
    )  # fmt: skip
    layers = fields.layers("num_hidden_layers", "n_layer")
    return decoder(fields.having(tie_word_embeddings=True, hidden_size=width), ((Layer(mixer, None), layers),))


def jamba(fields: Fields) -> Architecture:
    """Jamba: one layer of attention to several of Mamba, and experts in every second."""
    layers, width = fields.layers("num_hidden_layers"), fields.size("hidden_size")
    rank = -(-width // 16) if fields.given("mamba_dt_rank") in (None, "auto") else fields.size("mamba_dt_rank")
    mixer = replace(
        _scan(
            fields, fields.size("mamba_expand", default=2) * width, state=fields.size("mamba_d_state", default=16),
            taps=fields.size("mamba_d_conv", default=4), rank=rank,
            bias=fields.flag("mamba_proj_bias", default=False),
            filter_bias=fields.flag("mamba_conv_bias", default=True),
        ),
        normed=True,
    )  # fmt: skip
    count = fields.size("num_experts", default=16, most=MOST_EXPERTS)
    dense = gated(fields)
    experts = Experts(count, top_k(fields, count, default=2), dense) if count > 1 else dense
    attends = _every(fields, "attn_layer", layers, (8, 4))
    mixed = _every(fields, "expert_layer", layers, (2, 1))
    attention = replace(heads_of(fields), rotary=0)
    return decoder(
        fields,
        grouped(Layer(attention if k in attends else mixer, experts if k in mixed else dense) for k in range(layers)),
    )


def _every(fields: Fields, name: str, layers: int, usual: tuple[int, int]) -> set[int]:
    """Return the layers that `name`_period and `name`_offset choose."""
    period = fields.size(f"{name}_period", default=usual[0])
    return set(range(fields.size(f"{name}_offset", default=min(usual[1], period - 1), least=0), layers, period))


def _scan(fields: Fields, inner: int, *, state: int, taps: int, rank: int, bias: bool, filter_bias: bool) -> Recurrence:
    head = _HEAD if inner % _HEAD == 0 else 1
    return Recurrence(
        "mamba", 1, inner // head, state, head, taps=taps, filter_bias=filter_bias, chunk=256, bias=bias,
        decay_rank=rank, normed=False,
    )  # fmt: skip


def lfm2(fields: Fields) -> Architecture:
    """LFM2: gated convolutions, and attention in some layers."""
    inner = fields.size("block_ff_dim", "intermediate_size")
    if fields.flag("block_auto_adjust_ff_dim", default=True):
        inner = int(fields.ratio("block_ffn_dim_multiplier", default=1.0) * int(2 * inner / 3))
        multiple = fields.size("block_multiple_of", default=256)
        inner = -(-inner // multiple) * multiple
    part = FeedForward(inner, "silu", gated=True)
    return _lfm2(fields, [part] * fields.layers("num_hidden_layers"))


def lfm2_moe(fields: Fields) -> Architecture:
    """LFM2 with experts after `num_dense_layers`."""
    layers = fields.layers("num_hidden_layers")
    dense = fields.size("num_dense_layers", default=min(2, layers), least=0, most=layers)
    count = fields.size("num_experts", most=MOST_EXPERTS)
    each = gated(fields, "moe_intermediate_size")
    bias = fields.flag("use_expert_bias", default=True)
    experts = Experts(count, top_k(fields, count, default=4), each, router_bias=bias)
    return _lfm2(fields, [gated(fields) if k < dense else experts for k in range(layers)])


def _lfm2(fields: Fields, parts: list[FeedForward] | list[Experts] | list[FeedForward | Experts]) -> Architecture:
    width, heads, layers = fields.size("hidden_size"), heads_of(fields), len(parts)
    attends = fields.indices("full_attn_idxs", layers)
    local = fields.kinds("layer_types", _MIXERS, layers) or [k not in attends for k in range(layers)]
    bias = fields.flag("conv_bias", default=False)
    mixer = Recurrence(
        "convolution", heads.heads, heads.heads, 1,
        fields.whole("num_attention_heads", width, heads.heads, "hidden_size"),
        taps=fields.size("conv_L_cache", default=3), filter_bias=bias, bias=bias, normed=False,
    )  # fmt: skip
    attention = replace(heads, head_norm=True)
    tied = fields.having(tie_word_embeddings=fields.given("tie_embedding") is not False)
    return decoder(
        tied,
        grouped(Layer(mixer if near else attention, part) for near, part in zip(local, parts, strict=True)),
    )
