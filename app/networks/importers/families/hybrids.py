"""Decoders with linear attention: Mamba, Mamba2 and Kimi Delta Attention, and hybrids of these with attention."""

from __future__ import annotations

from dataclasses import replace
from typing import NoReturn

from app.networks.importers.families.config_fields import MOST_EXPERTS, MOST_LAYERS, Fields
from app.networks.importers.families.decoders import (
    Traits,
    attention_of,
    experts_of,
    grouped,
    heads_of,
    inner_of,
    mixed_layers,
    opened,
    whole,
)
from app.networks.transformers.architecture import Architecture, Attention, Experts, FeedForward, Layer, Recurrence

_LINEAR = {"linear_attention": True, "full_attention": False}
_MIXERS = {"mamba": True, "attention": False}
_CONVOLVED = {"conv": True, "full_attention": False}
# Letters of Nemotron's `hybrid_override_pattern`, and words of `layers_block_type`.
_LETTERS = {"M": "mamba", "E": "moe", "*": "attention", "-": "mlp"}
_WORDS = {word: word for word in _LETTERS.values()}
# Features of Mamba that are split and priced together, as a head of Mamba2.
_HEAD = 64


def qwen_hybrid(fields: Fields) -> Architecture:
    """Qwen3-Next and Qwen3.5 (Alibaba, 2025 and 2026): three layers of a gated delta rule to one of gated attention."""
    fields, traits = opened(fields)
    layers = fields.layers("num_hidden_layers")
    mixed = mixed_layers(fields, traits, layers)
    experts = experts_of(fields, traits) if traits.experts else None
    inner = inner_of(fields, traits) if not all(mixed) else None
    interval = fields.size("full_attention_interval", default=4)
    linear = fields.kinds("layer_types", _LINEAR, layers) or [(k + 1) % interval != 0 for k in range(layers)]
    full, delta = _gated_attention(fields, traits), _gated_delta(fields)
    parts = (Layer(delta if linear[k] else full, experts if mixed[k] else inner) for k in range(layers))
    return whole(fields, traits, grouped(parts))


def _gated_attention(fields: Fields, traits: Traits) -> Attention:
    heads, rope = attention_of(fields, traits), fields.inside("rope_parameters")
    part = (rope if "partial_rotary_factor" in rope.config else fields).share("partial_rotary_factor", default=0.25)
    gate = fields.flag("attn_output_gate", default=True)
    return replace(heads, gated=gate, rotary=max(int(heads.head_dim * part), 1))


def _gated_delta(fields: Fields) -> Recurrence:
    keys = fields.size("linear_num_key_heads", default=16)
    values = fields.size("linear_num_value_heads", default=32)
    fields.whole("linear_num_key_heads", values, keys, "linear_num_value_heads")
    return Recurrence(
        "gdn",
        keys,
        values,
        fields.size("linear_key_head_dim", default=128),
        fields.size("linear_value_head_dim", default=128),
        taps=fields.size("linear_conv_kernel_dim", default=4),
    )


def kimi_linear(fields: Fields) -> Architecture:
    """Kimi Linear (Moonshot, 2025) and Kimi K3 (2026): Kimi Delta Attention beside latent attention.

    `linear_attn_config` lists the layers of each kind, from 1.
    """
    fields, traits = opened(fields)
    layers = fields.layers("num_hidden_layers")
    linear = fields.inside("linear_attn_config")
    full = {k - 1 for k in linear.indices("full_attn_layers", layers + 1)}
    attention = replace(attention_of(fields, traits), gated=fields.flag("mla_use_output_gate", default=False))
    mixed = mixed_layers(fields, traits, layers)
    experts, inner = experts_of(fields, traits), inner_of(fields, traits)
    heads, size = linear.size("num_heads"), linear.size("head_dim")
    taps = linear.size("short_conv_kernel_size", default=4)
    rank = 0 if linear.flag("use_full_rank_gate", default=False) else size
    delta = Recurrence("kda", heads, heads, size, size, taps=taps, decay_rank=size, gate_rank=rank)
    parts = (Layer(attention if k in full else delta, experts if mixed[k] else inner) for k in range(layers))
    return whole(fields, traits, grouped(parts))


def mamba2(fields: Fields) -> Architecture:
    """Mamba2 (Dao and Gu 2024): layers of nothing but linear attention."""
    inner = fields.size("expand", default=2) * fields.size("hidden_size")
    size = fields.size("head_dim", default=64)
    heads = fields.size("num_heads", default=fields.whole("head_dim", inner, size, "expand x hidden_size"))
    mixer = _mamba2(
        fields, heads, size, groups=("n_groups", 8), state="state_size", bias="use_bias", chunk=("chunk_size", 256)
    )
    return whole(*opened(fields), ((Layer(mixer, None), fields.layers("num_hidden_layers")),))


def _mamba2(  # noqa: PLR0913  the names of its fields
    fields: Fields,
    heads: int,
    size: int,
    *,
    groups: tuple[str, int],
    state: str,
    bias: str,
    chunk: tuple[str, int],
    usual_state: int = 128,
    taps: str = "conv_kernel",
    filter_bias: str = "use_conv_bias",
    normed: bool = True,
) -> Recurrence:
    """Return Mamba2 of `heads` of `size` elements; the rest are names of its fields, some with the default."""
    name, usual = groups
    number = fields.size(name, default=usual)
    fields.whole(name, heads, number, "the number of Mamba2's heads")
    return Recurrence(
        "mamba2",
        number,
        heads,
        fields.size(state, default=usual_state),
        size,
        taps=fields.size(taps, default=4),
        filter_bias=fields.flag(filter_bias, default=True),
        chunk=fields.size(chunk[0], default=chunk[1]),
        bias=fields.flag(bias, default=False),
        normed=normed,
        whole_norm=True,
    )


def nemotron_h(fields: Fields) -> Architecture:
    """Nemotron-H and Nemotron 3 (NVIDIA): a layer is Mamba2, attention, experts, or a feed-forward part."""
    fields, traits = opened(fields)
    kinds = _pattern(fields)
    size = fields.size("head_dim", "attention_head_dim", default=128)
    parts: dict[str, Layer] = {"attention": Layer(attention_of(fields.having(head_dim=size), traits), None)}
    heads = fields.size("mamba_num_heads", default=128)
    if "mamba" in kinds:
        mixer = _mamba2(
            fields, heads, fields.size("mamba_head_dim", default=64), groups=("n_groups", 8), state="ssm_state_size",
            bias="mamba_proj_bias", chunk=("chunk_size", 128),
        )  # fmt: skip
        parts["mamba"] = Layer(mixer, None)
    if "mlp" in kinds:
        parts["mlp"] = Layer(None, inner_of(fields, traits))
    if "moe" in kinds:
        parts["moe"] = Layer(None, experts_of(fields, traits))
    return whole(fields, traits, grouped(parts[kind] for kind in kinds))


def _pattern(fields: Fields) -> list[str]:
    """Return the kind of every layer: mamba, attention, moe or mlp."""
    letters = fields.config.get("hybrid_override_pattern")
    if letters is None:
        given = fields.config.get("layers_block_type")
        layers = len(given) if isinstance(given, list) else 0
        return fields.kinds("layers_block_type", _WORDS, layers) or _missing(fields)
    if not isinstance(letters, str) or not 0 < len(letters) <= MOST_LAYERS or not set(letters) <= _LETTERS.keys():
        fields.refuse("hybrid_override_pattern", f"must be a string of {' '.join(_LETTERS)}, one per layer")
    if fields.layers("num_hidden_layers", default=len(letters)) != len(letters):
        fields.refuse("num_hidden_layers", f"contradicts hybrid_override_pattern, which has {len(letters)} layers")
    return [_LETTERS[letter] for letter in letters]


def _missing(fields: Fields) -> NoReturn:
    fields.refuse(
        "hybrid_override_pattern", f"is missing, as is layers_block_type: one of {' '.join(_LETTERS)} a layer"
    )


def _ibm_mixer(fields: Fields, *, normed: bool = True, inner: int | None = None) -> Recurrence:
    """Return the Mamba2 of Bamba, Granite 4 and Falcon-H1, whose fields start with `mamba_`."""
    heads = fields.size("mamba_n_heads", default=128)
    inner = inner or fields.size("mamba_expand", default=2) * fields.size("hidden_size")
    size = fields.whole("mamba_n_heads", inner, heads, "mamba_expand x hidden_size")
    given = fields.config.get("mamba_d_head")
    return _mamba2(
        fields, heads, size if given in (None, "auto") else fields.size("mamba_d_head"), groups=("mamba_n_groups", 1),
        state="mamba_d_state", usual_state=256, taps="mamba_d_conv", filter_bias="mamba_conv_bias",
        bias="mamba_proj_bias", chunk=("mamba_chunk_size", 256), normed=normed,
    )  # fmt: skip


def bamba(fields: Fields) -> Architecture:
    """Bamba (IBM, 2024): attention in the layers `attn_layer_indices`, Mamba2 in the others."""
    layers = fields.layers("num_hidden_layers")
    attends = fields.indices("attn_layer_indices", layers)
    heads = heads_of(fields)
    rotated = min(fields.size("attn_rotary_emb", default=heads.head_dim), heads.head_dim)
    attention, (_, traits) = replace(heads, rotary=rotated), opened(fields)
    inner = inner_of(fields, traits)
    mixer = _ibm_mixer(fields) if len(attends) < layers else attention
    parts = (Layer(attention if k in attends else mixer, inner) for k in range(layers))
    return whole(fields, traits, grouped(parts))


def granite_hybrid(fields: Fields) -> Architecture:
    """Granite 4 (IBM, 2025): Mamba2 or attention without positions, then routed experts beside a dense part."""
    fields, traits = opened(fields)
    layers = fields.layers("num_hidden_layers")
    linear = fields.kinds("layer_types", _MIXERS, layers) or [True] * layers
    attention = attention_of(fields, traits)
    dense = replace(inner_of(fields, traits, "shared_intermediate_size"), one_linear=True)
    routed = fields.size("num_local_experts", default=0, least=0, most=MOST_EXPERTS) > 0
    inner: FeedForward | Experts = replace(experts_of(fields, traits), shared=dense) if routed else dense
    mixer = _ibm_mixer(fields) if any(linear) else attention
    return whole(fields, traits, grouped(Layer(mixer if mamba else attention, inner) for mamba in linear))


def falcon_h1(fields: Fields) -> Architecture:
    """Falcon-H1 (TII, 2025): Mamba2 and attention beside one another in every layer."""
    fields, traits = opened(fields)
    attention = attention_of(fields, traits)
    normed = fields.flag("mamba_rms_norm", default=False)
    inner = fields.size("mamba_d_ssm", default=0, least=0) or None
    layer = Layer(attention, inner_of(fields, traits), beside=_ibm_mixer(fields, normed=normed, inner=inner))
    return whole(fields, traits, ((layer, fields.layers("num_hidden_layers")),))


def mamba(fields: Fields) -> Architecture:
    """Mamba (Gu and Dao 2023) and Falcon-Mamba: layers of nothing but a selective scan."""
    width = fields.size("hidden_size", "d_model")
    inner = fields.size("intermediate_size", "d_inner", default=fields.size("expand", default=2) * width)
    mixer = _scan(
        fields, inner, state=fields.size("state_size", default=16), taps=fields.size("conv_kernel", default=4),
        rank=_rank(fields, "time_step_rank", width), bias=fields.flag("use_bias", default=False),
        filter_bias=fields.flag("use_conv_bias", default=True),
    )  # fmt: skip
    layers = fields.layers("num_hidden_layers", "n_layer")
    return whole(*opened(fields.having(hidden_size=width)), ((Layer(mixer, None), layers),))


def _rank(fields: Fields, name: str, width: int) -> int:
    """Return the features between the layers that give the rates of a scan."""
    return -(-width // 16) if fields.given(name) in (None, "auto") else fields.size(name)


def _scan(fields: Fields, inner: int, *, state: int, taps: int, rank: int, bias: bool, filter_bias: bool) -> Recurrence:
    head = _HEAD if inner % _HEAD == 0 else 1
    return Recurrence(
        "mamba", 1, inner // head, state, head, taps=taps, filter_bias=filter_bias, chunk=256, bias=bias,
        decay_rank=rank, normed=False,
    )  # fmt: skip


def jamba(fields: Fields) -> Architecture:
    """Jamba (AI21, 2024): one layer of attention to several of Mamba, and experts in every second."""
    fields, traits = opened(fields)
    layers, width = fields.layers("num_hidden_layers"), fields.size("hidden_size")
    scan = _scan(
        fields, fields.size("mamba_expand", default=2) * width, state=fields.size("mamba_d_state", default=16),
        taps=fields.size("mamba_d_conv", default=4), rank=_rank(fields, "mamba_dt_rank", width),
        bias=fields.flag("mamba_proj_bias", default=False), filter_bias=fields.flag("mamba_conv_bias", default=True),
    )  # fmt: skip
    mixer = replace(scan, normed=True)
    dense = inner_of(fields, traits)
    one = fields.size("num_experts", default=0, most=MOST_EXPERTS) == 1
    experts = dense if one else experts_of(fields, traits)
    attends = _every(fields, "attn_layer", layers, (8, 4))
    mixed = _every(fields, "expert_layer", layers, (2, 1))
    attention = attention_of(fields, traits)
    parts = (Layer(attention if k in attends else mixer, experts if k in mixed else dense) for k in range(layers))
    return whole(fields, traits, grouped(parts))


def _every(fields: Fields, name: str, layers: int, usual: tuple[int, int]) -> set[int]:
    """Return the layers that `name`_period and `name`_offset choose."""
    period = fields.size(f"{name}_period", default=usual[0])
    return set(range(fields.size(f"{name}_offset", default=min(usual[1], period - 1), least=0), layers, period))


def lfm2(fields: Fields) -> Architecture:
    """LFM2 (Liquid, 2025): gated convolutions, and attention in some layers."""
    inner = fields.size("block_ff_dim", "intermediate_size")
    if fields.flag("block_auto_adjust_ff_dim", default=True):
        inner = int(fields.ratio("block_ffn_dim_multiplier", default=1.0) * int(2 * inner / 3))
        multiple = fields.size("block_multiple_of", default=256)
        inner = -(-inner // multiple) * multiple
    part = FeedForward(inner, "silu", gated=True)
    return _lfm2(fields, [part] * fields.layers("num_hidden_layers"))


def lfm2_moe(fields: Fields) -> Architecture:
    """LFM2 with experts after `num_dense_layers`."""
    fields, traits = opened(fields)
    mixed = mixed_layers(fields, traits, fields.layers("num_hidden_layers"))
    experts = experts_of(fields, traits)
    return _lfm2(fields, [experts if routed else inner_of(fields, traits) for routed in mixed])


def _lfm2(fields: Fields, parts: list[FeedForward] | list[FeedForward | Experts]) -> Architecture:
    fields, traits = opened(fields)
    width, attention, layers = fields.size("hidden_size"), attention_of(fields, traits), len(parts)
    attends = fields.indices("full_attn_idxs", layers)
    local = fields.kinds("layer_types", _CONVOLVED, layers) or [k not in attends for k in range(layers)]
    bias = fields.flag("conv_bias", default=False)
    mixer = Recurrence(
        "convolution", attention.heads, attention.heads, 1,
        fields.whole("num_attention_heads", width, attention.heads, "hidden_size"),
        taps=fields.size("conv_L_cache", default=3), filter_bias=bias, bias=bias, normed=False,
    )  # fmt: skip
    tied = fields.having(tie_word_embeddings=fields.given("tie_embedding") is not False)
    layer = (Layer(mixer if near else attention, part) for near, part in zip(local, parts, strict=True))
    return whole(tied, traits, grouped(layer))
