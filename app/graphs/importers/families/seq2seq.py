"""Encoder-decoders with biases and absolute positions: BART and what is built like it, and Whisper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from app.graphs.importers.families.config_fields import Fields
from app.graphs.importers.families.heads import head_kind
from app.graphs.transformers.architecture import (
    Architecture,
    Attention,
    Embedding,
    FeedForward,
    Frames,
    Head,
    Layer,
    Order,
    Stack,
)
from app.graphs.transformers.row_writer import ACTIVATIONS

_HEADS = {"ForConditionalGeneration": "words", "MTModel": "words", "Model": "none"}
# Unused first rows of the position tables (padding, as in fairseq).
_OFFSET = 2


@dataclass(frozen=True, slots=True)
class Pair:
    """What sets an encoder-decoder apart.

    order     place of the norms; with `pre` a norm follows the last layer
    learned   positions are learned (else computed)
    normed    a norm follows the embedding
    held      computed positions are kept as weights
    """

    order: Order
    learned: bool = True
    normed: bool = False
    held: bool = False


PAIRS: Mapping[str, Pair] = {
    "bart": Pair("post", normed=True),
    "m2m_100": Pair("pre", learned=False),
    "marian": Pair("post", learned=False, held=True),
    "mbart": Pair("pre", normed=True),
    "pegasus": Pair("pre", learned=False, held=True),
}


def encoder_decoder(fields: Fields) -> Architecture:
    """Return BART or a model of the table, by default with the language-model head."""
    spec, width, vocabulary = PAIRS[fields.model_type], fields.size("d_model"), fields.size("vocab_size")
    positions = fields.size("max_position_embeddings", default=1024)
    rows = positions + _OFFSET if spec.learned else positions * spec.held
    scaled = fields.flag("scale_embedding", default=False)
    words = Embedding(width, vocabulary, rows, positions, norm=spec.normed, scaled=scaled, drops=True)
    final = spec.order == "pre"
    encoder = Stack(
        width, words, ((_layer(fields, "encoder", spec.order), _layers(fields, "encoder")),), "layer_norm", final
    )
    shared = replace(words, shared=True)
    decoder = Stack(
        width, shared, ((_layer(fields, "decoder", spec.order), _layers(fields, "decoder")),), "layer_norm", final
    )
    return _whole(fields, (encoder, decoder), vocabulary)


def whisper(fields: Fields) -> Architecture:
    """Whisper (Radford et al. 2022): 30 seconds of sound as 1,500 frames, then a decoder of text."""
    width, vocabulary = fields.size("d_model"), fields.size("vocab_size", default=51865)
    frames = Frames(fields.size("max_source_positions", default=1500), fields.size("num_mel_bins", default=80))
    encoder = Stack(
        width, Embedding(width, frames=frames), ((_layer(fields, "encoder", "pre"), _layers(fields, "encoder")),),
        "layer_norm",
    )  # fmt: skip
    positions = fields.size("max_target_positions", default=448)
    words = Embedding(width, vocabulary, positions, positions)
    decoder = Stack(width, words, ((_layer(fields, "decoder", "pre"), _layers(fields, "decoder")),), "layer_norm")
    return _whole(fields, (encoder, decoder), vocabulary)


def _layers(fields: Fields, side: str) -> int:
    return fields.layers(f"{side}_layers")


def _layer(fields: Fields, side: str, order: Order) -> Layer:
    """Return a layer of the encoder or the decoder, which also attends to the encoder's output."""
    width, heads = fields.size("d_model"), fields.size(f"{side}_attention_heads")
    size = fields.whole(f"{side}_attention_heads", width, heads, "d_model")
    own = Attention(heads, heads, size, bias=True, out_bias=True, scale="queries", copied="always")
    into = replace(own, causal=False)
    activation = fields.word("activation_function", choices=ACTIVATIONS, default="gelu")
    inner = FeedForward(fields.size(f"{side}_ffn_dim"), activation, bias=True)
    return Layer(into, inner, order) if side == "encoder" else Layer(own, inner, order, cross=into)


def _whole(fields: Fields, stacks: tuple[Stack, Stack], vocabulary: int) -> Architecture:
    words = head_kind(fields, _HEADS, "words") == "words"
    tied = fields.flag("tie_word_embeddings", default=True)
    return Architecture(
        stacks,
        Head(vocabulary=vocabulary, tied=tied) if words else Head(),
        drops=fields.share("dropout", default=0.1) > 0.0,
        drops_attention=fields.share("attention_dropout", default=0.0) > 0.0,
    )
