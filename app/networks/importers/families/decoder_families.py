"""Decoders whose layers, or whose configurations, are of a shape of their own: a function for each.

Traits that they share with others stand in the table (decoders.py).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from msgspec.structs import replace as changed

from app.networks.importers.families.config_fields import MOST_EXPERTS, MOST_SIZE, Fields, causal_head, shown
from app.networks.importers.families.decoders import (
    attention_of,
    experts_of,
    grouped,
    heads_of,
    in_window,
    inner_of,
    of_traits,
    opened,
    whole,
    windowed,
)
from app.networks.transformers.architecture import (
    AltUp,
    Architecture,
    Attention,
    Embedding,
    Experts,
    FeedForward,
    Layer,
    LayerInputs,
    Stack,
)

_MARKS = {0: False, 1: True}


def falcon(fields: Fields) -> Architecture:
    """Falcon (TII, 2023): one head of keys, or groups; both parts in parallel, with a norm each in the larger ones."""
    fields, traits = opened(fields)
    new = fields.flag("new_decoder_architecture", default=False)
    shared = fields.flag("multi_query", default=True) and not new
    heads, width = fields.size("num_attention_heads"), fields.size("hidden_size")
    kv_heads = 1 if shared else fields.size("num_kv_heads", default=heads)
    norms = fields.size("num_ln_in_parallel_attn", default=2 if new else 1, most=2)
    if new:
        traits = changed(traits, parallel=True, abreast="parallel_normed" if norms > 1 else "parallel")
    return of_traits(fields.having(num_key_value_heads=kv_heads, ffn_hidden_size=4 * width), traits)


def mpt(fields: Fields) -> Architecture:
    """MPT (MosaicML, 2023): no biases, and a bias of scores by distance in place of positions."""
    fields, traits = opened(fields)
    attention, width = fields.inside("attn_config"), fields.size("hidden_size")
    shared = attention.size("kv_n_heads", default=fields.size("num_attention_heads"))
    inner = fields.size("expansion_ratio", default=4) * width
    own = fields.having(intermediate_size=inner, num_key_value_heads=shared)
    return of_traits(own, changed(traits, alibi=attention.flag("alibi", default=True)))


def dbrx(fields: Fields) -> Architecture:
    """DBRX (Databricks, 2024): experts in every layer, norms without biases."""
    fields, traits = opened(fields)
    attention, inner = fields.inside("attn_config"), fields.inside("ffn_config")
    own = fields.having(num_key_value_heads=attention.size("kv_n_heads", default=1))
    heads = replace(heads_of(own), one_linear=True)
    count = inner.size("moe_num_experts", default=4, most=MOST_EXPERTS)
    chosen = inner.size("moe_top_k", "num_experts_per_tok", default=1, most=count)
    experts = Experts(count, chosen, FeedForward(inner.size("ffn_hidden_size", default=3584), "silu", gated=True))
    return whole(own, traits, ((Layer(heads, experts), own.layers("num_hidden_layers")),))


def hunyuan_moe(fields: Fields) -> Architecture:
    """Hunyuan with experts (Tencent, 2025): sizes of experts are one number, or a list of one per layer, all equal."""
    layers = fields.layers("num_hidden_layers")
    fields, traits = opened(fields)
    heads, inner = attention_of(fields, traits), inner_of(fields, traits)
    count, chosen = _alike(fields, "num_experts", layers, None), _alike(fields, "moe_topk", layers, 1)
    if not chosen <= count:
        fields.refuse("moe_topk", f"must be at most {count}, the experts")
    each = replace(inner, inner=_alike(fields, "moe_intermediate_size", layers, inner.inner))
    shared = _alike(fields, "num_shared_expert", layers, 0)
    if not fields.flag("use_mixed_mlp_moe", default=True):
        shared = 0
    always = replace(each, inner=shared * inner.inner) if shared else None
    experts = Experts(count, chosen, each, shared=always)
    dense = fields.size("moe_layer_num_skipped", default=0, least=0, most=layers)
    return whole(fields, traits, grouped(Layer(heads, inner if k < dense else experts) for k in range(layers)))


def _alike(fields: Fields, name: str, layers: int, default: int | None) -> int:
    """Return a size that is given once, or for each layer alike."""
    if not isinstance(fields.given(name), list):
        return fields.size(name, default=default, least=0, most=MOST_SIZE)
    sizes = set(fields.sizes(name, layers) or ())
    if len(sizes) != 1:
        fields.refuse(name, "must be the same in all layers: send any other network as a graph")
    return sizes.pop()


def gemma4(fields: Fields) -> Architecture:
    """Gemma 4's text part: layers of all keys have wider heads, fewer of keys, and may take keys as values.

    In the small ones, layers have inputs of their own, and the last take earlier layers' keys (then with wider parts).
    """
    fields, traits = opened(fields)
    layers = fields.layers("num_hidden_layers")
    local = windowed(fields, traits, layers)
    window = in_window(fields, traits, attention_of(fields, traits))
    size = fields.size("global_head_dim", default=window.head_dim)
    both = fields.flag("attention_k_eq_v", default=False)
    shared = fields.size("num_global_key_value_heads", default=window.kv_heads) if both else window.kv_heads
    fields.whole("num_global_key_value_heads", window.heads, shared, "num_attention_heads")
    heads = replace(window, kv_heads=shared, head_dim=size, rotary=size, window=0, keys_as_values=both)
    own = layers - fields.size("num_kv_shared_layers", default=0, least=0, most=layers - 1)
    dense = inner_of(fields, traits)
    inner: FeedForward | Experts = dense
    wide: FeedForward | Experts = dense
    if fields.flag("use_double_wide_mlp", default=False):
        wide = replace(dense, inner=2 * dense.inner)
    if fields.flag("enable_moe_block", default=False):  # beside which the dense part runs as a shared expert
        inner = wide = replace(experts_of(fields, traits), shared=dense)
    parts = grouped(
        Layer(replace(window if near else heads, keys_from_earlier=k >= own), inner if k < own else wide, "sandwich")
        for k, near in enumerate(local)
    )
    return _with_inputs(fields, whole(fields, traits, parts), default=0)


def gemma3n(fields: Fields) -> Architecture:
    """Gemma 3n's text part: every layer has an input of its own, one of four streams is computed (AltUp)."""
    fields, traits = opened(fields)
    layers = fields.layers("num_hidden_layers")
    local, heads = windowed(fields, traits, layers), attention_of(fields, traits)
    window = in_window(fields, traits, heads)
    own = layers - fields.size("num_kv_shared_layers", default=min(15, layers - 1), least=0, most=layers - 1)
    listed = isinstance(fields.given("intermediate_size"), list)
    inner = fields.sizes("intermediate_size", layers) if listed else [fields.size("intermediate_size")] * layers
    if not inner or not all(inner):
        fields.refuse("intermediate_size", "must hold positive numbers")
    activation = fields.activation("hidden_activation", default=traits.activation)
    parts = grouped(
        Layer(
            replace(window if near else heads, keys_from_earlier=k >= own),
            FeedForward(inner[k], activation, gated=True),
            "sandwich",
        )
        for k, near in enumerate(local)
    )
    model = _with_inputs(fields, whole(fields, traits, parts), default=256)
    altup = AltUp(fields.size("altup_num_inputs", default=4, least=2, most=64), fields.size("laurel_rank", default=64))
    return replace(model, stacks=(replace(model.stacks[0], altup=altup),))


def _with_inputs(fields: Fields, model: Architecture, default: int) -> Architecture:
    """Return the decoder with inputs of every layer, if the configuration has them."""
    size = fields.size("hidden_size_per_layer_input", default=default, least=0)
    if not size:
        return model
    rows = fields.size("vocab_size_per_layer_input", default=262144)
    return replace(model, stacks=(replace(model.stacks[0], layer_inputs=LayerInputs(rows, size)),))


def gpt_bigcode(fields: Fields) -> Architecture:
    """StarCoder and SantaCoder (BigCode, 2023): GPT-2 with one head of keys and values."""
    shared = fields.flag("multi_query", default=True)
    return gpt2(fields.having(activation_function="gelu_pytorch_tanh"), kv_heads=1 if shared else 0)


def gpt2(fields: Fields, kv_heads: int = 0) -> Architecture:
    """GPT-2 (Radford et al. 2019); `kv_heads` of keys and values, 0: as many as of queries."""
    width = fields.size("n_embd", "hidden_size")
    heads = fields.size("n_head", "num_attention_heads")
    vocabulary, positions = fields.size("vocab_size"), fields.size("n_positions", "n_ctx", "max_position_embeddings")
    activation = fields.activation("activation_function", default="gelu_new")
    attention = Attention(
        heads, kv_heads or heads, fields.whole("n_head", width, heads, "n_embd"), one_linear=True, bias=True,
        out_bias=True, scale="divided" if fields.flag("scale_attn_weights", default=True) else "none", mask="selected",
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


# Unused first rows of OPT's position table (padding, as in fairseq).
_OPT_OFFSET = 2


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
    activation = fields.activation("activation_function", default="relu")
    layer = Layer(attention, FeedForward(fields.size("ffn_dim"), activation, bias=bias), "pre" if before else "post")
    own = fields.size("word_embed_proj_dim", default=width)
    embedding = Embedding(own, vocabulary, positions + _OPT_OFFSET, positions)
    final = before and not fields.flag("_remove_final_layer_norm", default=False)
    layers = fields.layers("num_hidden_layers")
    return Architecture(
        (Stack(width, embedding, ((layer, layers),), "layer_norm", final_norm=final),),
        causal_head(fields, vocabulary, tied=fields.flag("tie_word_embeddings", default=True)),
        drops=fields.share("dropout", default=0.1) > 0.0,
        drops_attention=fields.share("attention_dropout", default=0.0) > 0.0,
    )


# Every fourth layer of Llama 4 has no rotary positions and sees all keys.
_FULL_EVERY = 4
_CHUNKED = {"chunked_attention": True, "full_attention": False}


def llama4(fields: Fields) -> Architecture:
    """Llama 4's text part (Meta, 2025): three layers of attention within chunks to one of all keys.

    `interleave_moe_layer_step`: every so many layers has experts.
    """
    fields, traits = opened(fields)
    heads, layers = attention_of(fields, traits), fields.layers("num_hidden_layers")
    local = replace(heads, chunk=fields.size("attention_chunk_size", default=8192))
    everywhere = replace(heads, rotary=0)
    each = inner_of(fields, traits)
    experts = replace(experts_of(fields, traits), shared=each)
    step = fields.size("interleave_moe_layer_step", default=1)
    chunked = fields.kinds("layer_types", _CHUNKED, layers) or [(k + 1) % _FULL_EVERY != 0 for k in range(layers)]
    mixed = fields.indices("moe_layers", layers) or {k for k in range(layers) if (k + 1) % step == 0}
    dense = inner_of(fields, traits, "intermediate_size_mlp") if len(mixed) < layers else each
    parts = (Layer(local if chunked[k] else everywhere, experts if k in mixed else dense) for k in range(layers))
    return whole(fields, traits, grouped(parts))


def mimo_v2(fields: Fields) -> Architecture:
    """MiMo-V2 (Xiaomi, 2025): `hybrid_layer_pattern` marks layers with a window, `moe_layer_freq` with experts."""
    fields, traits = opened(fields)
    layers = fields.layers("num_hidden_layers")
    local = fields.kinds("hybrid_layer_pattern", _MARKS, layers) or [False] * layers
    mixed = fields.kinds("moe_layer_freq", _MARKS, layers) or [True] * layers
    full = replace(_mimo_heads(fields, ""), sinks=fields.flag("add_full_attention_sink_bias", default=False))
    window = replace(
        _mimo_heads(fields, "swa_"),
        sinks=fields.flag("add_swa_attention_sink_bias", default=True),
        window=fields.size("sliding_window_size", "sliding_window", default=128),
    )
    experts, dense = experts_of(fields, traits), inner_of(fields, traits)
    parts = (
        Layer(window if near else full, experts if routed else dense) for near, routed in zip(local, mixed, strict=True)
    )
    return whole(fields, traits, grouped(parts))


def _mimo_heads(fields: Fields, prefix: str) -> Attention:
    """Return the heads of layers without a window, or of those with one (`swa_`), which default to the former."""
    heads = fields.size(f"{prefix}num_attention_heads", "num_attention_heads")
    shared = fields.size(f"{prefix}num_key_value_heads", "num_key_value_heads")
    fields.whole(f"{prefix}num_key_value_heads", heads, shared, f"{prefix}num_attention_heads")
    size = fields.size(f"{prefix}head_dim", "head_dim")
    value = fields.size(f"{prefix}v_head_dim", "v_head_dim", default=size)
    turned = int(size * fields.share("partial_rotary_factor", default=1.0))
    bias = fields.flag("attention_bias", default=False)
    return Attention(
        heads, shared, size, rotary=turned, bias=bias, copied="batched", value=0 if value == size else value
    )


def step3(fields: Fields) -> Architecture:
    """Step-3's text part (StepFun, 2025): one head of keys, queries from `share_q_dim` features."""
    fields, traits = opened(fields)
    layers, heads = fields.layers("num_hidden_layers"), fields.size("num_attention_heads")
    shared, size = fields.size("num_attention_groups", default=1), fields.size("head_dim")
    fields.whole("num_attention_groups", heads, shared, "num_attention_heads")
    attention = Attention(heads, shared, size, rotary=size, query_rank=fields.size("share_q_dim"))
    experts, inner = experts_of(fields, traits), inner_of(fields, traits)
    experts = replace(experts, shared=replace(experts.each, inner=fields.size("share_expert_dim")))
    routed = _layer_numbers(fields, layers)
    return whole(fields, traits, grouped(Layer(attention, experts if k in routed else inner) for k in range(layers)))


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


# Rows of Llama 3.2 Vision's embedding that the logits lack: the marks of an image.
_IMAGE_TOKENS = 8


def mllama_text(fields: Fields) -> Architecture:
    """Llama 3.2 Vision's text part (Meta, 2024): Llama's layers, and layers that attend to an image.

    Prompts of text skip the `cross_attention_layers`, whose weights stay in memory.
    """
    fields, traits = opened(fields)
    layers, width = fields.layers("num_hidden_layers"), fields.size("hidden_size")
    crossed = len(fields.indices("cross_attention_layers", layers) or range(3, layers, 5))
    if crossed == layers:
        fields.refuse("cross_attention_layers", "must leave layers that text goes through")
    heads, inner = attention_of(fields, traits), inner_of(fields, traits)
    projected = 2 * width * heads.head_dim * (heads.heads + heads.kv_heads) + 2 * heads.head_dim
    each = projected + 3 * width * inner.inner + 2 * width + 2
    model = whole(fields, traits, ((Layer(heads, inner), layers - crossed),))
    return replace(model, towers=crossed * each + _IMAGE_TOKENS * width)


# Weights of Phi-4-multimodal's encoders of images and sound with their projections, which have one size.
_PHI4_ENCODERS = 441_550_016 + 466_432_256


def phi4mm(fields: Fields) -> Architecture:
    """Phi-4-multimodal (Microsoft, 2025): Phi 4 mini, low-rank adapters for images and for sound, and both encoders."""
    model = of_traits(*opened(fields))
    width, inner, heads = fields.size("hidden_size"), fields.size("intermediate_size"), heads_of(fields)
    wide = heads.head_dim * heads.heads
    sides = (
        (width + wide + 2 * heads.head_dim * heads.kv_heads) + (wide + width) + (width + 2 * inner) + (inner + width)
    )
    ranks = sum(fields.inside(name).size("r", default=0) for name in ("vision_lora", "speech_lora"))
    return replace(model, towers=ranks * sides * fields.layers("num_hidden_layers") + _PHI4_ENCODERS)


# Llama Nemotron's inner features are rounded up to a multiple of this (NVIDIA's modeling_decilm.py).
_MULTIPLE = 256
_MOST_FACTOR = 1024.0


def nemotron_nas(fields: Fields) -> Architecture:
    """Llama-3.3-Nemotron-Super and Ultra (NVIDIA, 2025): Llama layers that a search changed one by one.

    Each of `block_configs` gives its heads per KV head, its inner width, or neither.
    """
    layers = fields.layers("num_hidden_layers")
    blocks = fields.config.get("block_configs")
    if not isinstance(blocks, list) or len(blocks) != layers:
        fields.refuse("block_configs", f"must be a list of {layers} objects, one per layer")
    heads = heads_of(Fields({**fields.config, "num_key_value_heads": None}, fields.model_type, fields.within))
    activation = fields.activation("hidden_act", default="silu")
    width = fields.size("hidden_size")
    return whole(*opened(fields), grouped(_searched(fields, block, heads, activation, width) for block in blocks))


def _searched(fields: Fields, block: Any, heads: Attention, activation: str, width: int) -> Layer:
    """Return the layer of one block; parts that are `no_op` are absent."""
    if not isinstance(block, dict) or not all(isinstance(block.get(part), dict) for part in ("attention", "ffn")):
        fields.refuse("block_configs", "must hold objects with attention and ffn")
    attention, inner = block["attention"], block["ffn"]
    for part in (attention, inner):
        if part.get("replace_with_linear") or part.get("sparsify"):
            fields.refuse(
                "block_configs", "replace_with_linear and sparsify must be false: send the network as a graph"
            )
    return Layer(
        None if attention.get("no_op") else _searched_heads(fields, attention, heads),
        None if inner.get("no_op") else FeedForward(_searched_inner(fields, inner, width), activation, gated=True),
    )


def _searched_heads(fields: Fields, attention: dict[str, Any], heads: Attention) -> Attention:
    group = attention.get("n_heads_in_group")
    if not isinstance(group, int) or isinstance(group, bool) or group < 1 or heads.heads % group:
        fields.refuse("block_configs", f"n_heads_in_group must divide the {heads.heads} heads; found {shown(group)}")
    window = attention.get("window_length") or 0
    if not isinstance(window, int) or isinstance(window, bool) or not 0 <= window <= MOST_SIZE:
        fields.refuse("block_configs", f"window_length must be a whole number; found {shown(window)}")
    return replace(heads, kv_heads=heads.heads // group, window=window)


def _searched_inner(fields: Fields, inner: dict[str, Any], width: int) -> int:
    """Return the inner features: 2 / 3 of ffn_mult x width, rounded up."""
    factor = inner.get("ffn_mult")
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0.0 < factor <= _MOST_FACTOR:
        fields.refuse("block_configs", f"ffn_mult must be a positive number; found {shown(factor)}")
    return -(-int(2 * factor * width / 3) // _MULTIPLE) * _MULTIPLE
