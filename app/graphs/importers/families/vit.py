"""Vision Transformer (Dosovitskiy et al. 2021): an encoder of image patches, for the configuration's image size."""

from __future__ import annotations

from dataclasses import replace

from app.graphs.importers.families.config_fields import Fields
from app.graphs.importers.families.heads import head_kind, labels
from app.graphs.transformers.architecture import (
    Architecture,
    Attention,
    Embedding,
    FeedForward,
    Head,
    Layer,
    Patches,
    Stack,
)
from app.graphs.transformers.row_writer import ACTIVATIONS

_HEADS = {"ForImageClassification": "labels", "Model": "pooled"}


def dinov2(fields: Fields) -> Architecture:
    """DINOv2 (Oquab et al. 2023): ViT's layers with two scales each, by default without a head."""
    width, ratio = fields.size("hidden_size"), fields.size("mlp_ratio", default=4)
    if fields.flag("use_swiglu_ffn", default=False):
        fields.refuse("use_swiglu_ffn", "must be false: send the network as a graph or an ONNX file (POST /graphs)")
    found = vit(fields.having(intermediate_size=ratio * width, patch_size=14))
    layers = fields.layers("num_hidden_layers")
    scales = 2 * layers * width + width  # and the token that replaces masked patches
    head = Head() if found.head.pooled else found.head
    return replace(found, head=head, towers=scales)


def vit(fields: Fields) -> Architecture:
    """ViT, by default the encoder and its pooler."""
    width, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    bias = fields.flag("qkv_bias", default=True)
    attention = Attention(
        heads, heads, fields.whole("num_attention_heads", width, heads, "hidden_size"), causal=False, bias=bias,
        out_bias=True, scale="divided", mask="none", copied="batched",
    )  # fmt: skip
    activation = fields.word("hidden_act", choices=ACTIVATIONS, default="gelu")
    layer = Layer(attention, FeedForward(fields.size("intermediate_size"), activation, bias=True))
    image, patch = fields.size("image_size", default=224), fields.size("patch_size", default=16)
    if patch > image:
        fields.refuse("patch_size", "exceeds image_size")
    patches = Patches(image, patch, fields.size("num_channels", default=3))
    stack = Stack(
        width,
        Embedding(width, patches=patches, drops=True),
        ((layer, fields.layers("num_hidden_layers")),),
        "layer_norm",
    )
    classifies = head_kind(fields, _HEADS, "pooled") == "labels"
    return Architecture(
        (stack,),
        Head(labels=labels(fields)) if classifies else Head(pooled=True),
        generates=False,
        drops=fields.share("hidden_dropout_prob", default=0.0) > 0.0,
        drops_attention=fields.share("attention_probs_dropout_prob", default=0.0) > 0.0,
    )
