"""Encoder-decoders: T5 and Switch, BART and what is built like it, and Whisper."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from app.networks.importers.families.config_fields import MOST_EXPERTS, Fields, head_kind, table
from app.networks.transformers.architecture import (
    Architecture,
    Attention,
    Embedding,
    Experts,
    FeedForward,
    Frames,
    Head,
    Layer,
    Order,
    Stack,
)
from app.networks.transformers.row_writer import ACTIVATIONS

_Parts = tuple[tuple[FeedForward | Experts, int], ...]
# Values of T5's `feed_forward_proj`: whether it is gated, and its activation.
_PROJECTIONS = {word: (False, word) for word in ACTIVATIONS} | {
    "gated-gelu": (True, "gelu_new"),
    "gated-silu": (True, "silu"),
    "gated-relu": (True, "relu"),
}
# Unused first rows of BART's position tables (padding, as in fairseq).
_OFFSET = 2


class Pair(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What sets an encoder-decoder like BART apart (`encoder_decoders` of seed_data/model_configs.json)."""

    order: Order
    learned: bool = True
    normed: bool = False
    held: bool = False


PAIRS = msgspec.convert(table("encoder_decoders"), dict[str, Pair])


def t5(fields: Fields) -> Architecture:
    """T5 and FLAN-T5 (Raffel et al. 2020), by default with the language-model head.

    Scores are not scaled and get a learned bias by distance, computed in the first layer of each stack.
    """
    inner = _t5_feed_forward(fields)
    layers = fields.layers("num_layers", "num_hidden_layers")
    decoders = fields.layers("num_decoder_layers", default=layers)
    return _t5_stacks(fields, ((inner, layers),), ((inner, decoders),))


def switch_transformers(fields: Fields) -> Architecture:
    """Switch Transformers (Fedus et al. 2022): T5 of which some layers have experts, one per token."""
    inner = _t5_feed_forward(fields)
    count = fields.size("num_experts", most=MOST_EXPERTS)
    capacity = fields.size("expert_capacity", default=64)
    jitter = fields.present("router_jitter_noise", default=True)
    experts = Experts(count, 1, inner, capacity=capacity, jitter=jitter)
    layers = fields.layers("num_layers", "num_hidden_layers")
    decoders = fields.layers("num_decoder_layers", default=layers)
    parts: list[_Parts] = []
    for of, name in ((layers, "num_sparse_encoder_layers"), (decoders, "num_sparse_decoder_layers")):
        sparse = _mixed(of, fields.size(name, default=min(3, of), least=0, most=of))
        parts.append(tuple((part, many) for part, many in ((inner, of - sparse), (experts, sparse)) if many))
    return _t5_stacks(fields, parts[0], parts[1])


def _mixed(layers: int, sparse: int) -> int:
    """Return the number of layers with experts: the second of every `layers // sparse`, as in Hugging Face."""
    if not sparse:
        return 0
    step = layers // sparse
    return layers if step == 1 else (layers + step - 2) // step


def _t5_feed_forward(fields: Fields) -> FeedForward:
    gated, activation = _PROJECTIONS[fields.word("feed_forward_proj", choices=_PROJECTIONS, default="relu")]
    return FeedForward(fields.size("d_ff"), activation, gated, drops=True)


def _t5_stacks(fields: Fields, encoder: _Parts, decoder: _Parts) -> Architecture:
    width, heads, vocabulary = fields.size("d_model"), fields.size("num_heads"), fields.size("vocab_size")
    buckets = fields.size("relative_attention_num_buckets", default=32)
    own = Attention(
        heads, heads, fields.size("d_kv", default=64), scale="none", mask="none", biased="heads_last", copied="batched"
    )
    into = replace(own, causal=False)
    across = replace(into, biased="heads_first")  # nothing but the mask
    words = Embedding(width, vocabulary, drops=True)
    encoding = tuple((Layer(into, part), many) for part, many in encoder)
    decoding = tuple((Layer(own, part, cross=across), many) for part, many in decoder)
    stacks = (
        Stack(width, words, encoding, "rms_norm", relative=buckets),
        Stack(width, replace(words, shared=True), decoding, "rms_norm", relative=buckets),
    )
    tied = fields.flag("tie_word_embeddings", default=True)
    words_head = head_kind(fields, "t5", "words") == "words"
    drops = fields.share("dropout_rate", default=0.1) > 0.0
    head = Head(vocabulary=vocabulary, tied=tied, scaled=tied) if words_head else Head()
    return Architecture(stacks, head, drops=drops, drops_attention=drops)


def encoder_decoder(fields: Fields) -> Architecture:
    """BART and models like it (PAIRS), by default with the language-model head."""
    spec, width, vocabulary = PAIRS[fields.model_type], fields.size("d_model"), fields.size("vocab_size")
    positions = fields.size("max_position_embeddings", default=1024)
    rows = positions + _OFFSET if spec.learned else positions * spec.held
    scaled = fields.flag("scale_embedding", default=False)
    words = Embedding(width, vocabulary, rows, positions, norm=spec.normed, scaled=scaled, drops=True)
    return _both(fields, (words, replace(words, shared=True)), spec.order, vocabulary)


def whisper(fields: Fields) -> Architecture:
    """Whisper (Radford et al. 2022): 30 seconds of sound as 1,500 frames, then a decoder of text."""
    width, vocabulary = fields.size("d_model"), fields.size("vocab_size", default=51865)
    frames = Frames(fields.size("max_source_positions", default=1500), fields.size("num_mel_bins", default=80))
    positions = fields.size("max_target_positions", default=448)
    return _both(
        fields, (Embedding(width, frames=frames), Embedding(width, vocabulary, positions, positions)), "pre", vocabulary
    )


def _both(fields: Fields, embeddings: tuple[Embedding, Embedding], order: Order, vocabulary: int) -> Architecture:
    """Return an encoder and a decoder with the head; where norms come first, another follows the last layer."""
    stacks = tuple(
        Stack(
            embedding.width,
            embedding,
            ((_layer(fields, side, order), fields.layers(f"{side}_layers")),),
            "layer_norm",
            final_norm=order == "pre",
        )
        for side, embedding in zip(("encoder", "decoder"), embeddings, strict=True)
    )
    words = head_kind(fields, "bart", "words") == "words"
    tied = fields.flag("tie_word_embeddings", default=True)
    return Architecture(
        stacks,
        Head(vocabulary=vocabulary, tied=tied) if words else Head(),
        drops=fields.share("dropout", default=0.1) > 0.0,
        drops_attention=fields.share("attention_dropout", default=0.0) > 0.0,
    )


def _layer(fields: Fields, side: str, order: Order) -> Layer:
    """Return a layer of the encoder or the decoder, which also attends to the encoder's output."""
    width, heads = fields.size("d_model"), fields.size(f"{side}_attention_heads")
    size = fields.whole(f"{side}_attention_heads", width, heads, "d_model")
    own = Attention(heads, heads, size, bias=True, out_bias=True, scale="queries", copied="always")
    into = replace(own, causal=False)
    activation = fields.activation("activation_function", default="gelu")
    inner = FeedForward(fields.size(f"{side}_ffn_dim"), activation, bias=True)
    return Layer(into, inner, order) if side == "encoder" else Layer(own, inner, order, cross=into)
