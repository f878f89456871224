"""CLIP (Radford et al. 2021) and SigLIP (Zhai et al. 2023): an encoder of images and one of texts."""

from __future__ import annotations

from dataclasses import replace

from app.graphs.importers.families.config_fields import Fields
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

Layers = tuple[tuple[Layer, int], ...]
_TEXT = {
    "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 8,
    "vocab_size": 49408,
}  # fmt: skip
_IMAGE = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}


def clip(fields: Fields) -> Architecture:
    """CLIP: a batch is as many images as texts; sizes that a configuration leaves out are those of CLIP ViT-B/32."""
    text = fields.inside("text_config").having(**_TEXT)
    image = fields.inside("vision_config").having(**_IMAGE)
    out = fields.size("projection_dim", default=512)
    seen_by, read_by = _layers(image, "quick_gelu"), _layers(text, "quick_gelu", causal=True)
    seen = _images(image, seen_by, patch=32, marked=True)
    stacks = (replace(seen, projected=out), _texts(text, read_by, positions=77, out=out))
    return Architecture(stacks, Head(), generates=False)


def siglip(fields: Fields) -> Architecture:
    """SigLIP: no token before the patches; weights of the attention that pools them are counted, and take no time."""
    text = fields.inside("text_config").having(**_TEXT | _IMAGE | {"vocab_size": 32000})
    image = fields.inside("vision_config").having(**_IMAGE)
    width, inner = image.size("hidden_size"), image.size("intermediate_size")
    pool = width + 4 * width * (width + 1) + 2 * width * inner + inner + width + 2 * width
    activation = "gelu_pytorch_tanh"
    out = text.size("projection_size", default=text.size("hidden_size"))
    stacks = (
        _images(image, _layers(image, activation), patch=16, marked=False),
        _texts(text, _layers(text, activation), positions=64, out=out),
    )
    return Architecture(stacks, Head(), generates=False, towers=pool)


def _images(image: Fields, layers: Layers, *, patch: int, marked: bool) -> Stack:
    pixels, size = image.size("image_size", default=224), image.size("patch_size", default=patch)
    if size > pixels:
        image.refuse("patch_size", "exceeds image_size")
    width = image.size("hidden_size")
    patches = Patches(pixels, size, image.size("num_channels", default=3), marked)
    return Stack(width, Embedding(width, norm=marked, patches=patches), layers, "layer_norm")


def _texts(text: Fields, layers: Layers, *, positions: int, out: int) -> Stack:
    width, rows = text.size("hidden_size"), text.size("max_position_embeddings", default=positions)
    return Stack(width, Embedding(width, text.size("vocab_size"), rows, rows), layers, "layer_norm", projected=out)


def _layers(part: Fields, activation: str, *, causal: bool = False) -> Layers:
    width, heads = part.size("hidden_size"), part.size("num_attention_heads")
    size = part.whole("num_attention_heads", width, heads, "hidden_size")
    attention = Attention(
        heads, heads, size, causal=causal, bias=True, out_bias=True, mask="added" if causal else "none",
        copied="batched",
    )  # fmt: skip
    activation = part.word("hidden_act", choices=ACTIVATIONS, default=activation)
    inner = FeedForward(part.size("intermediate_size"), activation, bias=True)
    return ((Layer(attention, inner), part.layers("num_hidden_layers")),)
