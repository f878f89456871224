"""CLIP (Radford et al. 2021): an encoder of images and one of texts, each projected to the same features."""

from __future__ import annotations

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
    stacks = (_images(image, out), _texts(text, out))
    return Architecture(stacks, Head(), generates=False)


def _images(image: Fields, out: int) -> Stack:
    pixels, patch = image.size("image_size", default=224), image.size("patch_size", default=32)
    if patch > pixels:
        image.refuse("patch_size", "exceeds image_size")
    width = image.size("hidden_size")
    embedding = Embedding(width, norm=True, patches=Patches(pixels, patch, image.size("num_channels", default=3)))
    return Stack(width, embedding, _layers(image, causal=False), "layer_norm", projected=out)


def _texts(text: Fields, out: int) -> Stack:
    width, positions = text.size("hidden_size"), text.size("max_position_embeddings", default=77)
    embedding = Embedding(width, text.size("vocab_size"), positions, positions)
    return Stack(width, embedding, _layers(text, causal=True), "layer_norm", projected=out)


def _layers(part: Fields, *, causal: bool) -> tuple[tuple[Layer, int], ...]:
    width, heads = part.size("hidden_size"), part.size("num_attention_heads")
    size = part.whole("num_attention_heads", width, heads, "hidden_size")
    attention = Attention(
        heads, heads, size, causal=causal, bias=True, out_bias=True, mask="added" if causal else "none",
        copied="batched",
    )  # fmt: skip
    activation = part.word("hidden_act", choices=ACTIVATIONS, default="quick_gelu")
    inner = FeedForward(part.size("intermediate_size"), activation, bias=True)
    return ((Layer(attention, inner), part.layers("num_hidden_layers")),)
