"""T5 (Raffel et al. 2020), FLAN-T5 and Switch Transformers (Fedus et al. 2022): an encoder, then a decoder.

Scores are not scaled and get a learned bias by distance, computed in the first layer of each stack.
"""

from __future__ import annotations

from dataclasses import replace

from app.graphs.importers.families.config_fields import MOST_EXPERTS, Fields
from app.graphs.importers.families.heads import head_kind
from app.graphs.transformers.architecture import (
    Architecture,
    Attention,
    Embedding,
    Experts,
    FeedForward,
    Head,
    Layer,
    Stack,
)
from app.graphs.transformers.row_writer import ACTIVATIONS

_HEADS = {"ForConditionalGeneration": "words", "WithLMHeadModel": "words", "Model": "none"}
# Values of `feed_forward_proj`: whether it is gated, and its activation.
_PROJECTIONS = {word: (False, word) for word in ACTIVATIONS} | {
    "gated-gelu": (True, "gelu_new"),
    "gated-silu": (True, "silu"),
    "gated-relu": (True, "relu"),
}


def t5(fields: Fields) -> Architecture:
    """T5 and FLAN-T5, by default with the language-model head."""
    inner = _feed_forward(fields)
    layers = fields.layers("num_layers", "num_hidden_layers")
    decoders = fields.layers("num_decoder_layers", default=layers)
    return _both(fields, ((inner, layers),), ((inner, decoders),))


def switch_transformers(fields: Fields) -> Architecture:
    """Switch Transformers: some layers have experts, one per token."""
    inner = _feed_forward(fields)
    count = fields.size("num_experts", most=MOST_EXPERTS)
    capacity = fields.size("expert_capacity", default=64)
    jitter = fields.present("router_jitter_noise", default=True)
    experts = Experts(count, 1, inner, capacity=capacity, jitter=jitter)
    layers = fields.layers("num_layers", "num_hidden_layers")
    decoders = fields.layers("num_decoder_layers", default=layers)
    parts = []
    for of, name in ((layers, "num_sparse_encoder_layers"), (decoders, "num_sparse_decoder_layers")):
        sparse = _mixed(of, fields.size(name, default=min(3, of), least=0, most=of))
        parts.append(tuple((part, many) for part, many in ((inner, of - sparse), (experts, sparse)) if many))
    return _both(fields, parts[0], parts[1])


def _mixed(layers: int, sparse: int) -> int:
    """Return the number of layers with experts: the second of every `layers // sparse`, as in Hugging Face."""
    if not sparse:
        return 0
    step = layers // sparse
    return layers if step == 1 else (layers + step - 2) // step


def _feed_forward(fields: Fields) -> FeedForward:
    gated, activation = _PROJECTIONS[fields.word("feed_forward_proj", choices=_PROJECTIONS, default="relu")]
    return FeedForward(fields.size("d_ff"), activation, gated, drops=True)


def _both(
    fields: Fields,
    encoder: tuple[tuple[FeedForward | Experts, int], ...],
    decoder: tuple[tuple[FeedForward | Experts, int], ...],
) -> Architecture:
    width, heads, vocabulary = fields.size("d_model"), fields.size("num_heads"), fields.size("vocab_size")
    buckets = fields.size("relative_attention_num_buckets", default=32)
    own = Attention(
        heads, heads, fields.size("d_kv", default=64), scale="none", mask="none", biased="heads_last", copied="batched"
    )
    into = replace(own, causal=False)
    across = replace(into, biased="heads_first")  # nothing but the mask
    words = Embedding(width, vocabulary, drops=True)
    stacks = (
        Stack(width, words, tuple((Layer(into, part), many) for part, many in encoder), "rms_norm", relative=buckets),
        Stack(
            width, replace(words, shared=True), tuple((Layer(own, part, cross=across), many) for part, many in decoder),
            "rms_norm", relative=buckets,
        ),
    )  # fmt: skip
    tied = fields.flag("tie_word_embeddings", default=True)
    words_head = head_kind(fields, _HEADS, "words") == "words"
    drops = fields.share("dropout_rate", default=0.1) > 0.0
    head = Head(vocabulary=vocabulary, tied=tied, scaled=tied) if words_head else Head()
    return Architecture(stacks, head, drops=drops, drops_attention=drops)
