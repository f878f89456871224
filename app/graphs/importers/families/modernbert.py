"""ModernBERT (Warner et al. 2024): an encoder with rotary positions, and a window in two of three layers."""

from __future__ import annotations

from dataclasses import replace

from app.graphs.importers.families.config_fields import Fields
from app.graphs.importers.families.gpt_oss import WINDOWED
from app.graphs.importers.families.heads import head_kind, labels
from app.graphs.importers.families.llama import grouped, heads_of
from app.graphs.transformers.architecture import Architecture, Embedding, FeedForward, Head, Layer, NormKind, Stack
from app.graphs.transformers.row_writer import ACTIVATIONS

_HEADS = {
    "ForMaskedLM": "words",
    "ForSequenceClassification": "sequence labels",
    "ForMultipleChoice": "sequence labels",
    "ForTokenClassification": "token labels",
    "ForQuestionAnswering": "token labels",
    "Model": "none",
}


def modernbert(fields: Fields) -> Architecture:
    """ModernBERT, by default the encoder alone.

    Embeddings are normalised and the first layer's input is not again: one norm, counted with the layer.
    """
    width, vocabulary = fields.size("hidden_size"), fields.size("vocab_size")
    layers, every = fields.layers("num_hidden_layers"), fields.size("global_attn_every_n_layers", default=3)
    local = fields.kinds("layer_types", WINDOWED, layers) or [k % every != 0 for k in range(layers)]
    bias = fields.flag("attention_bias", default=False)
    heads = replace(heads_of(fields), causal=False, one_linear=True, bias=bias, out_bias=bias)
    window = replace(heads, window=2 * (fields.size("local_attention", default=128, least=2) // 2) + 1)
    activation = fields.word("hidden_activation", choices=ACTIVATIONS, default="gelu")
    bias = fields.flag("mlp_bias", default=False)
    inner = FeedForward(fields.size("intermediate_size"), activation, gated=True, bias=bias, one_linear=True)
    normed: NormKind = "layer_norm" if fields.flag("norm_bias", default=False) else "unbiased_layer_norm"
    drops = [fields.share(name, default=0.0) > 0.0 for name in ("embedding_dropout", "mlp_dropout")]
    embedding = Embedding(width, vocabulary, drops=drops[0])
    parts = grouped(Layer(window if near else heads, inner) for near in local)
    return Architecture(
        (Stack(width, embedding, parts, normed),),
        _head(fields, vocabulary),
        generates=False,
        drops=any(drops),
        drops_attention=fields.share("attention_dropout", default=0.0) > 0.0,
    )


def _head(fields: Fields, vocabulary: int) -> Head:
    kind = head_kind(fields, _HEADS, "none")
    if kind == "none":
        return Head()
    activation = fields.word("classifier_activation", choices=ACTIVATIONS, default="gelu")
    transform = Head(transform=activation, transform_bias=fields.flag("classifier_bias", default=False))
    if kind == "words":
        tied, bias = fields.flag("tie_word_embeddings", default=True), fields.flag("decoder_bias", default=True)
        return replace(transform, vocabulary=vocabulary, tied=tied, bias=bias)
    return replace(transform, labels=labels(fields), of="sequence" if kind == "sequence labels" else "token")
