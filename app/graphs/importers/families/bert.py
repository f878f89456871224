"""BERT (Devlin et al. 2019) and RoBERTa: an encoder with the norm after each residual sum."""

from __future__ import annotations

from dataclasses import replace

from app.graphs.importers.families.config_fields import Fields
from app.graphs.importers.families.heads import head_kind, labels
from app.graphs.transformers.architecture import Architecture, Attention, Embedding, FeedForward, Head, Layer, Stack
from app.graphs.transformers.row_writer import ACTIVATIONS

_HEADS = {
    "ForMaskedLM": "words",
    "LMHeadModel": "words",
    "ForPreTraining": "pretraining",
    "ForSequenceClassification": "sequence labels",
    "ForTokenClassification": "token labels",
    "ForQuestionAnswering": "token labels",
    "Model": "pooled",
}


# Unused first rows of RoBERTa's position table (padding, as in fairseq).
_ROBERTA_OFFSET = 2


def roberta(fields: Fields) -> Architecture:
    """RoBERTa and XLM-RoBERTa (Liu et al. 2019): BERT's layers."""
    return bert(fields, offset=_ROBERTA_OFFSET)


_DISTILLED = {
    "hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers",
    "intermediate_size": "hidden_dim", "hidden_act": "activation", "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
}  # fmt: skip


def distilbert(fields: Fields) -> Architecture:
    """DistilBERT (Sanh et al. 2019): BERT's layers without segments, by default without a pooler."""
    own = fields.named(_DISTILLED).having(type_vocab_size=0)
    return bert(own, pooled=False)


_NOMIC = {
    "hidden_size": "n_embd", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer",
    "intermediate_size": "n_inner", "max_position_embeddings": "n_positions",
}  # fmt: skip


def nomic_bert(fields: Fields) -> Architecture:
    """Nomic's embedding models (2024): rotary positions, gated parts, by default no pooler."""
    own = fields.named(_NOMIC).having(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    width, heads = own.size("hidden_size"), own.size("num_attention_heads")
    size = own.whole("num_attention_heads", width, heads, "hidden_size")
    bias = own.flag("qkv_proj_bias", default=False)
    attention = Attention(
        heads, heads, size, causal=False, one_linear=True, bias=bias, out_bias=bias, rotary=size, scale="divided",
        copied="batched",
    )  # fmt: skip
    inner = FeedForward(own.size("intermediate_size"), "silu", gated=True, bias=own.flag("mlp_fc1_bias", default=False))
    segments = own.size("type_vocab_size", default=2, least=0)
    embedding = Embedding(width, own.size("vocab_size"), segments=segments, norm=True)
    layers = ((Layer(attention, inner, "post"), own.layers("num_hidden_layers")),)
    stack = Stack(width, embedding, layers, "layer_norm", final_norm=False)
    return Architecture((stack,), _head(own, own.size("vocab_size"), "gelu", pooled=False), generates=False)


def mpnet(fields: Fields) -> Architecture:
    """MPNet (Song et al. 2020): RoBERTa's layers without segments, scores with a learned bias by distance."""
    found = bert(fields.having(type_vocab_size=0), offset=_ROBERTA_OFFSET)
    stack = found.stacks[0]
    ((layer, layers),) = stack.layers
    attention = layer.attention
    if isinstance(attention, Attention):
        attention = replace(attention, biased="heads_first")
    buckets = fields.size("relative_attention_num_buckets", default=32)
    stack = replace(stack, relative=buckets, layers=((replace(layer, attention=attention), layers),))
    return replace(found, stacks=(stack,))


def deberta_v2(fields: Fields) -> Architecture:
    """DeBERTa V2 and V3 (He et al. 2021): scores of contents and of distances, by default without a pooler."""
    if fields.size("conv_kernel_size", default=0, least=0):
        fields.refuse("conv_kernel_size", "must be 0 (its convolution is not known): send a graph or an ONNX file")
    width, positions = fields.size("hidden_size"), fields.size("max_position_embeddings", default=512)
    found = bert(fields.having(type_vocab_size=0, max_position_embeddings=512), pooled=False)
    stack = found.stacks[0]
    ((layer, layers),) = stack.layers
    attention, held = layer.attention, 0
    if fields.flag("relative_attention", default=False) and isinstance(attention, Attention):
        buckets = fields.size("position_buckets", default=-1, least=-1)
        rows = 2 * (buckets if buckets > 0 else positions)
        attention, held = replace(attention, relative_rows=rows), rows * width + 2 * width
    learned = fields.flag("position_biased_input", default=True)
    embedding = replace(stack.embedding, positions=stack.embedding.positions if learned else 0)
    stack = replace(stack, embedding=embedding, layers=((replace(layer, attention=attention), layers),))
    return replace(found, stacks=(stack,), towers=held)


def electra(fields: Fields) -> Architecture:
    """ELECTRA (Clark et al. 2020): BERT's layers over narrower embeddings, by default without a pooler."""
    return bert(fields, pooled=False, embedded=fields.size("embedding_size", default=128))


def bert(fields: Fields, offset: int = 0, *, pooled: bool = True, embedded: int = 0) -> Architecture:
    """BERT, by default the encoder and, where it is `pooled`, its pooler.

    offset    unused rows of the position table
    embedded  width of the embeddings, if not that of the layers
    """
    width, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    vocabulary, positions = fields.size("vocab_size"), fields.size("max_position_embeddings", least=offset + 1)
    activation = fields.word("hidden_act", choices=ACTIVATIONS, default="gelu")
    attention = Attention(
        heads, heads, fields.whole("num_attention_heads", width, heads, "hidden_size"), causal=False, bias=True,
        out_bias=True, scale="divided", copied="batched",
    )  # fmt: skip
    inner = FeedForward(fields.size("intermediate_size"), activation, bias=True)
    segments = fields.size("type_vocab_size", default=2, least=0)
    embedding = Embedding(embedded or width, vocabulary, positions, positions - offset, segments, norm=True, drops=True)
    layers = fields.layers("num_hidden_layers")
    return Architecture(
        (Stack(width, embedding, ((Layer(attention, inner, "post"), layers),), "layer_norm", final_norm=False),),
        _head(fields, vocabulary, activation, pooled=pooled),
        generates=False,
        drops=fields.share("hidden_dropout_prob", default=0.1) > 0.0,
        drops_attention=fields.share("attention_probs_dropout_prob", default=0.1) > 0.0,
    )


def _head(fields: Fields, vocabulary: int, activation: str, *, pooled: bool) -> Head:
    kind = head_kind(fields, _HEADS, "pooled")
    words = Head(vocabulary=vocabulary, tied=True, bias=True, transform=activation)
    match kind:
        case "words":
            return words
        case "pretraining":
            return Head(True, vocabulary, tied=True, bias=True, transform=activation, labels=2)
        case "sequence labels":
            return Head(pooled=True, labels=labels(fields))
        case "token labels":
            return Head(labels=labels(fields), of="token")
        case _:
            return Head(pooled=pooled)
