"""Encoders of text (BERT and what follows it), of images (ViT), and of both (CLIP)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from app.networks.importers.families.config_fields import Fields, head_kind, labels, table
from app.networks.importers.families.decoders import WINDOWED, grouped, heads_of
from app.networks.transformers.architecture import (
    Architecture,
    Attention,
    Embedding,
    FeedForward,
    Head,
    Layer,
    NormKind,
    Patches,
    Stack,
)

Layers = tuple[tuple[Layer, int], ...]

# Unused first rows of RoBERTa's position table (padding, as in fairseq).
_ROBERTA_OFFSET = 2


def bert(
    fields: Fields,
    offset: int = 0,
    *,
    pooled: bool = True,
    embedded: int = 0,
    learned: bool = True,
    relative: int = 0,
    towers: int = 0,
    **attention: Any,
) -> Architecture:
    """BERT (Devlin et al. 2019): norms after each residual sum; by default the encoder and, where `pooled`, its pooler.

    offset    unused rows of the position table, which is `learned`
    embedded  width of the embeddings, if not that of the layers
    relative, towers, attention  of Stack, of Architecture, and of Attention
    """
    width, heads = fields.size("hidden_size"), _heads(fields, scale="divided", **attention)
    vocabulary, positions = fields.size("vocab_size"), fields.size("max_position_embeddings", least=offset + 1)
    activation = fields.activation("hidden_act", default="gelu")
    layer = Layer(heads, FeedForward(fields.size("intermediate_size"), activation, bias=True), "post")
    segments = fields.size("type_vocab_size", default=2, least=0)
    embedding = Embedding(
        embedded or width, vocabulary, positions if learned else 0, positions - offset, segments, norm=True, drops=True
    )
    layers = ((layer, fields.layers("num_hidden_layers")),)
    return Architecture(
        (Stack(width, embedding, layers, "layer_norm", final_norm=False, relative=relative),),
        _bert_head(fields, vocabulary, activation, pooled=pooled),
        generates=False,
        towers=towers,
        **_drops(fields, usual=0.1),
    )


def _heads(fields: Fields, *, bias: bool = True, causal: bool = False, **more: Any) -> Attention:
    """Return heads that share the width, each with its keys and values."""
    width, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    size = fields.whole("num_attention_heads", width, heads, "hidden_size")
    usual: dict[str, Any] = {"out_bias": True, "copied": "batched"}
    return Attention(heads, heads, size, causal=causal, bias=bias, **usual | more)


def _drops(fields: Fields, usual: float) -> dict[str, Any]:
    """Return which parts of a layer drop elements in training."""
    names = {"drops": "hidden_dropout_prob", "drops_attention": "attention_probs_dropout_prob"}
    return {part: fields.share(name, default=usual) > 0.0 for part, name in names.items()}


def _bert_head(fields: Fields, vocabulary: int, activation: str, *, pooled: bool) -> Head:
    words = Head(vocabulary=vocabulary, tied=True, bias=True, transform=activation)
    match head_kind(fields, "bert", "pooled"):
        case "words":
            return words
        case "pretraining":
            return replace(words, pooled=True, labels=2)
        case "sequence labels":
            return Head(pooled=True, labels=labels(fields))
        case "token labels":
            return Head(labels=labels(fields), of="token")
        case _:
            return Head(pooled=pooled)


def roberta(fields: Fields) -> Architecture:
    """RoBERTa and XLM-RoBERTa (Liu et al. 2019): BERT's layers."""
    return bert(fields, offset=_ROBERTA_OFFSET)


def distilbert(fields: Fields) -> Architecture:
    """DistilBERT (Sanh et al. 2019): BERT's layers without segments, by default without a pooler."""
    return bert(fields.named(table("names")["distilbert"]).having(type_vocab_size=0), pooled=False)


def electra(fields: Fields) -> Architecture:
    """ELECTRA (Clark et al. 2020): BERT's layers over narrower embeddings, by default without a pooler."""
    return bert(fields, pooled=False, embedded=fields.size("embedding_size", default=128))


def mpnet(fields: Fields) -> Architecture:
    """MPNet (Song et al. 2020): RoBERTa's layers without segments, scores with a learned bias by distance."""
    buckets = fields.size("relative_attention_num_buckets", default=32)
    return bert(fields.having(type_vocab_size=0), offset=_ROBERTA_OFFSET, relative=buckets, biased="heads_first")


def deberta_v2(fields: Fields) -> Architecture:
    """DeBERTa V2 and V3 (He et al. 2021): scores of contents and of distances, by default without a pooler."""
    if fields.size("conv_kernel_size", default=0, least=0):
        fields.refuse("conv_kernel_size", "must be 0 (its convolution is not known): send a graph or an ONNX file")
    width, positions = fields.size("hidden_size"), fields.size("max_position_embeddings", default=512)
    rows = 0
    if fields.flag("relative_attention", default=False):
        buckets = fields.size("position_buckets", default=-1, least=-1)
        rows = 2 * (buckets if buckets > 0 else positions)
    learned = fields.flag("position_biased_input", default=True)
    held = rows * width + 2 * width if rows else 0
    own = fields.having(type_vocab_size=0, max_position_embeddings=512)
    return bert(own, pooled=False, learned=learned, towers=held, relative_rows=rows)


def nomic_bert(fields: Fields) -> Architecture:
    """Nomic's embedding models (2024): rotary positions, gated parts, by default no pooler."""
    own = fields.named(table("names")["nomic_bert"])
    width, bias = own.size("hidden_size"), own.flag("qkv_proj_bias", default=False)
    heads = _heads(own, bias=bias, out_bias=bias, one_linear=True, scale="divided")
    attention = replace(heads, rotary=heads.head_dim)
    inner = FeedForward(own.size("intermediate_size"), "silu", gated=True, bias=own.flag("mlp_fc1_bias", default=False))
    segments, vocabulary = own.size("type_vocab_size", default=2, least=0), own.size("vocab_size")
    embedding = Embedding(width, vocabulary, segments=segments, norm=True)
    layers = ((Layer(attention, inner, "post"), own.layers("num_hidden_layers")),)
    stack = Stack(width, embedding, layers, "layer_norm", final_norm=False)
    return Architecture((stack,), _bert_head(own, vocabulary, "gelu", pooled=False), generates=False)


def modernbert(fields: Fields) -> Architecture:
    """ModernBERT (Warner et al. 2024): rotary positions, a window in two of three layers, by default the encoder alone.

    Embeddings are normalised and the first layer's input is not again: one norm, counted with the layer.
    """
    width, vocabulary = fields.size("hidden_size"), fields.size("vocab_size")
    layers, every = fields.layers("num_hidden_layers"), fields.size("global_attn_every_n_layers", default=3)
    local = fields.kinds("layer_types", WINDOWED, layers) or [k % every != 0 for k in range(layers)]
    bias = fields.flag("attention_bias", default=False)
    heads = replace(heads_of(fields), causal=False, one_linear=True, bias=bias, out_bias=bias)
    window = replace(heads, window=2 * (fields.size("local_attention", default=128, least=2) // 2) + 1)
    activation = fields.activation("hidden_activation", default="gelu")
    bias = fields.flag("mlp_bias", default=False)
    inner = FeedForward(fields.size("intermediate_size"), activation, gated=True, bias=bias, one_linear=True)
    normed: NormKind = "layer_norm" if fields.flag("norm_bias", default=False) else "unbiased_layer_norm"
    drops = [fields.share(name, default=0.0) > 0.0 for name in ("embedding_dropout", "mlp_dropout")]
    embedding = Embedding(width, vocabulary, drops=drops[0])
    parts = grouped(Layer(window if near else heads, inner) for near in local)
    return Architecture(
        (Stack(width, embedding, parts, normed),),
        _modernbert_head(fields, vocabulary),
        generates=False,
        drops=any(drops),
        drops_attention=fields.share("attention_dropout", default=0.0) > 0.0,
    )


def _modernbert_head(fields: Fields, vocabulary: int) -> Head:
    kind = head_kind(fields, "modernbert", "none")
    if kind == "none":
        return Head()
    activation = fields.activation("classifier_activation", default="gelu")
    transform = Head(transform=activation, transform_bias=fields.flag("classifier_bias", default=False))
    if kind == "words":
        tied, bias = fields.flag("tie_word_embeddings", default=True), fields.flag("decoder_bias", default=True)
        return replace(transform, vocabulary=vocabulary, tied=tied, bias=bias)
    return replace(transform, labels=labels(fields), of="sequence" if kind == "sequence labels" else "token")


def vit(fields: Fields) -> Architecture:
    """ViT (Dosovitskiy et al. 2021) for the configuration's image size, by default the encoder and its pooler."""
    width, bias = fields.size("hidden_size"), fields.flag("qkv_bias", default=True)
    attention = _heads(fields, bias=bias, scale="divided", mask="none")
    activation = fields.activation("hidden_act", default="gelu")
    layer = Layer(attention, FeedForward(fields.size("intermediate_size"), activation, bias=True))
    embedding = Embedding(width, patches=_patches(fields, 16, marked=True), drops=True)
    stack = Stack(width, embedding, ((layer, fields.layers("num_hidden_layers")),), "layer_norm")
    classifies = head_kind(fields, "vit", "pooled") == "labels"
    return Architecture(
        (stack,),
        Head(labels=labels(fields)) if classifies else Head(pooled=True),
        generates=False,
        **_drops(fields, usual=0.0),
    )


def _patches(fields: Fields, usual: int, *, marked: bool) -> Patches:
    """Return the patches of an image, `usual` pixels a side where the configuration does not say."""
    image, patch = fields.size("image_size", default=224), fields.size("patch_size", default=usual)
    if patch > image:
        fields.refuse("patch_size", "exceeds image_size")
    return Patches(image, patch, fields.size("num_channels", default=3), marked)


def dinov2(fields: Fields) -> Architecture:
    """DINOv2 (Oquab et al. 2023): ViT's layers with two scales each, by default without a head."""
    width, ratio = fields.size("hidden_size"), fields.size("mlp_ratio", default=4)
    if fields.flag("use_swiglu_ffn", default=False):
        fields.refuse("use_swiglu_ffn", "must be false: send the network as a graph or an ONNX file (POST /graphs)")
    model = vit(fields.having(intermediate_size=ratio * width, patch_size=14))
    scales = 2 * fields.layers("num_hidden_layers") * width + width  # and the token that replaces masked patches
    return replace(model, head=Head() if model.head.pooled else model.head, towers=scales)


def clip(fields: Fields) -> Architecture:
    """CLIP (Radford et al. 2021): a batch is as many images as texts; sizes left out are those of CLIP ViT-B/32."""
    usual = table("usual")
    text = fields.inside("text_config").having(**usual["clip_text"])
    image = fields.inside("vision_config").having(**usual["clip_image"])
    out = fields.size("projection_dim", default=512)
    seen_by, read_by = _clip_layers(image, "quick_gelu"), _clip_layers(text, "quick_gelu", causal=True)
    images = replace(_clip_images(image, seen_by, patch=32, marked=True), projected=out)
    return Architecture((images, _clip_texts(text, read_by, positions=77, out=out)), Head(), generates=False)


def siglip(fields: Fields) -> Architecture:
    """SigLIP (Zhai et al. 2023): no token before the patches.

    Weights of the attention that pools them are counted, and take no time.
    """
    usual = table("usual")
    text = fields.inside("text_config").having(**usual["clip_text"] | usual["clip_image"] | {"vocab_size": 32000})
    image = fields.inside("vision_config").having(**usual["clip_image"])
    width, inner = image.size("hidden_size"), image.size("intermediate_size")
    pool = width + 4 * width * (width + 1) + 2 * width * inner + inner + width + 2 * width
    activation = "gelu_pytorch_tanh"
    out = text.size("projection_size", default=text.size("hidden_size"))
    stacks = (
        _clip_images(image, _clip_layers(image, activation), patch=16, marked=False),
        _clip_texts(text, _clip_layers(text, activation), positions=64, out=out),
    )
    return Architecture(stacks, Head(), generates=False, towers=pool)


def _clip_images(image: Fields, layers: Layers, *, patch: int, marked: bool) -> Stack:
    width, patches = image.size("hidden_size"), _patches(image, patch, marked=marked)
    return Stack(width, Embedding(width, norm=marked, patches=patches), layers, "layer_norm")


def _clip_texts(text: Fields, layers: Layers, *, positions: int, out: int) -> Stack:
    width, rows = text.size("hidden_size"), text.size("max_position_embeddings", default=positions)
    return Stack(width, Embedding(width, text.size("vocab_size"), rows, rows), layers, "layer_norm", projected=out)


def _clip_layers(part: Fields, activation: str, *, causal: bool = False) -> Layers:
    attention = _heads(part, causal=causal, mask="added" if causal else "none")
    activation = part.activation("hidden_act", default=activation)
    inner = FeedForward(part.size("intermediate_size"), activation, bias=True)
    return ((Layer(attention, inner), part.layers("num_hidden_layers")),)
