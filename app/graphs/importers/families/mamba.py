"""Mamba2 (Dao and Gu 2024) and hybrids of it: Nemotron-H and Nemotron 3, Bamba, Granite 4, Falcon-H1."""

from __future__ import annotations

from dataclasses import replace

from app.graphs.importers.families.config_fields import MOST_EXPERTS, MOST_LAYERS, Fields
from app.graphs.importers.families.llama import decoder, gated, grouped, heads_of
from app.graphs.importers.families.mixtures import top_k
from app.graphs.transformers.architecture import Architecture, Attention, Experts, FeedForward, Layer, Recurrence
from app.graphs.transformers.row_writer import ACTIVATIONS

# Letters of Nemotron's `hybrid_override_pattern`, and words of `layers_block_type`.
_LETTERS = {"M": "mamba", "E": "moe", "*": "attention", "-": "mlp"}
_WORDS = {word: word for word in _LETTERS.values()}
_MIXERS = {"mamba": True, "attention": False}


def mamba2(fields: Fields) -> Architecture:
    """Mamba2: layers of nothing but linear attention."""
    width = fields.size("hidden_size")
    inner = fields.size("expand", default=2) * width
    size = fields.size("head_dim", default=64)
    heads = fields.size("num_heads", default=fields.whole("head_dim", inner, size, "expand x hidden_size"))
    mixer = Recurrence(
        "mamba2",
        _groups(fields, "n_groups", heads, default=8),
        heads,
        fields.size("state_size", default=128),
        size,
        taps=fields.size("conv_kernel", default=4),
        filter_bias=fields.flag("use_conv_bias", default=True),
        chunk=fields.size("chunk_size", default=256),
        bias=fields.flag("use_bias", default=False),
        whole_norm=True,
    )
    return decoder(fields, ((Layer(mixer, None), fields.layers("num_hidden_layers")),))


def _groups(fields: Fields, name: str, heads: int, default: int) -> int:
    """Return the groups of Mamba2, which must divide its heads."""
    groups = fields.size(name, default=default)
    fields.whole(name, heads, groups, "the number of Mamba2's heads")
    return groups


def nemotron_h(fields: Fields) -> Architecture:
    """Nemotron-H and Nemotron 3: every layer is one part: Mamba2, attention, experts, or a feed-forward part."""
    kinds = _pattern(fields)
    attention = _plain_heads(fields)
    heads = fields.size("mamba_num_heads", default=128)
    parts: dict[str, Layer] = {"attention": Layer(attention, None)}
    if "mamba" in kinds:
        parts["mamba"] = Layer(_nemotron_mixer(fields, heads), None)
    activation = fields.word("mlp_hidden_act", choices=ACTIVATIONS, default="relu2")
    if "mlp" in kinds:
        bias = fields.flag("mlp_bias", default=False)
        parts["mlp"] = Layer(None, FeedForward(fields.size("intermediate_size"), activation, bias=bias))
    if "moe" in kinds:
        parts["moe"] = Layer(None, _nemotron_experts(fields, activation))
    return decoder(fields, grouped(parts[kind] for kind in kinds))


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


def _missing(fields: Fields) -> list[str]:
    fields.refuse(
        "hybrid_override_pattern", f"is missing, as is layers_block_type: one of {' '.join(_LETTERS)} a layer"
    )


def _plain_heads(fields: Fields) -> Attention:
    """Return attention without positions; its head size goes by two names."""
    config = {**fields.config, "head_dim": fields.size("head_dim", "attention_head_dim", default=128)}
    bias = fields.flag("attention_bias", default=False)
    return replace(heads_of(Fields(config, fields.model_type, fields.within)), rotary=0, bias=bias, out_bias=bias)


def _nemotron_mixer(fields: Fields, heads: int) -> Recurrence:
    return Recurrence(
        "mamba2",
        _groups(fields, "n_groups", heads, default=8),
        heads,
        fields.size("ssm_state_size", default=128),
        fields.size("mamba_head_dim", default=64),
        taps=fields.size("conv_kernel", default=4),
        filter_bias=fields.flag("use_conv_bias", default=True),
        chunk=fields.size("chunk_size", default=128),
        bias=fields.flag("mamba_proj_bias", default=False),
        whole_norm=True,
    )


def _nemotron_experts(fields: Fields, activation: str) -> Experts:
    count = fields.size("n_routed_experts", most=MOST_EXPERTS)
    shared = fields.size("moe_shared_expert_intermediate_size", default=0, least=0)
    return Experts(
        count,
        top_k(fields, count, default=6),
        FeedForward(fields.size("moe_intermediate_size"), activation),
        shared=FeedForward(shared, activation) if shared else None,
        router_bias=True,
        latent=fields.size("moe_latent_size", default=0, least=0),
    )


def _ibm_mixer(fields: Fields, *, normed: bool = True, inner: int | None = None) -> Recurrence:
    """Return the Mamba2 of Bamba, Granite 4 and Falcon-H1, whose fields start with `mamba_`."""
    heads = fields.size("mamba_n_heads", default=128)
    inner = inner or fields.size("mamba_expand", default=2) * fields.size("hidden_size")
    size = fields.whole("mamba_n_heads", inner, heads, "mamba_expand x hidden_size")
    given = fields.config.get("mamba_d_head")
    return Recurrence(
        "mamba2",
        _groups(fields, "mamba_n_groups", heads, default=1),
        heads,
        fields.size("mamba_d_state", default=256),
        size if given in (None, "auto") else fields.size("mamba_d_head"),
        taps=fields.size("mamba_d_conv", default=4),
        filter_bias=fields.flag("mamba_conv_bias", default=True),
        chunk=fields.size("mamba_chunk_size", default=256),
        bias=fields.flag("mamba_proj_bias", default=False),
        normed=normed,
        whole_norm=True,
    )


def bamba(fields: Fields) -> Architecture:
    """Bamba (IBM, 2024): attention in the layers `attn_layer_indices`, Mamba2 in the others."""
    layers = fields.layers("num_hidden_layers")
    attends = fields.indices("attn_layer_indices", layers)
    heads = heads_of(fields)
    rotated = min(fields.size("attn_rotary_emb", default=heads.head_dim), heads.head_dim)
    attention, inner = replace(heads, rotary=rotated), gated(fields)
    mixer = _ibm_mixer(fields) if len(attends) < layers else attention
    return decoder(fields, grouped(Layer(attention if k in attends else mixer, inner) for k in range(layers)))


def granite_hybrid(fields: Fields) -> Architecture:
    """Granite 4 (IBM, 2025): Mamba2 or attention without positions, then routed experts beside a dense part."""
    layers = fields.layers("num_hidden_layers")
    linear = fields.kinds("layer_types", _MIXERS, layers) or [True] * layers
    bias = fields.flag("attention_bias", default=False)
    attention = replace(heads_of(fields), bias=bias, out_bias=bias, rotary=0)
    inner: FeedForward | Experts = gated(fields, "shared_intermediate_size", one_linear=True)
    count = fields.size("num_local_experts", default=0, least=0, most=MOST_EXPERTS)
    if count and isinstance(inner, FeedForward):
        inner = Experts(count, top_k(fields, count, default=8), gated(fields), shared=inner)
    mixer = _ibm_mixer(fields) if any(linear) else attention
    return decoder(fields, grouped(Layer(mixer if mamba else attention, inner) for mamba in linear))


def falcon_h1(fields: Fields) -> Architecture:
    """Falcon-H1 (TII, 2025): Mamba2 and attention beside one another in every layer."""
    bias = fields.flag("attention_bias", default=False)
    attention = replace(heads_of(fields), bias=bias, out_bias=bias)
    normed = fields.flag("mamba_rms_norm", default=False)
    inner = fields.size("mamba_d_ssm", default=0, least=0) or None
    layer = Layer(
        attention,
        gated(fields, bias=fields.flag("mlp_bias", default=False)),
        beside=_ibm_mixer(fields, normed=normed, inner=inner),
    )
    return decoder(fields, ((layer, fields.layers("num_hidden_layers")),))
