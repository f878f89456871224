"""Weights of the image encoders of multi-modal models, and of what projects their output to the text's width.

They are counted, since they stay in memory; they do not run, since the text alone does (prompts of text).
"""

from __future__ import annotations

from app.graphs.importers.families.config_fields import Fields


def _layer(width: int, inner: int, *, bias: bool = True, norm: int = 2) -> int:
    """Return the weights of one encoder layer; `norm`: vectors of a norm."""
    biases = 5 * width + inner if bias else 0
    return 4 * width * width + 2 * width * inner + biases + 2 * norm * width


def _linear(inputs: int, outputs: int, *, bias: bool = True) -> int:
    return inputs * outputs + (outputs if bias else 0)


def qwen3_vl(vision: Fields) -> int:
    """Qwen3-VL and Qwen3.5: patches over two frames, learned positions, mergers of 2 x 2 patches (DeepStack: more)."""
    width, inner = vision.size("hidden_size"), vision.size("intermediate_size")
    merged = width * vision.size("spatial_merge_size", default=2) ** 2
    out = vision.size("out_hidden_size")
    pixels = vision.size("in_channels", default=3) * vision.size("temporal_patch_size", default=2)
    patches = _linear(pixels * vision.size("patch_size", default=16) ** 2, width)
    positions = vision.size("num_position_embeddings", default=2304) * width
    merger = _linear(merged, merged) + _linear(merged, out)
    deep = len(vision.indices("deepstack_visual_indexes", vision.layers("depth")))
    layers = vision.layers("depth") * _layer(width, inner)
    return patches + positions + layers + merger + 2 * width + deep * (merger + 2 * merged)


def qwen2_5_vl(vision: Fields) -> int:
    """Qwen2.5-VL: RMS norms, gated layers, no learned positions."""
    width, inner = vision.size("hidden_size"), vision.size("intermediate_size")
    merged = width * vision.size("spatial_merge_size", default=2) ** 2
    pixels = vision.size("in_channels", "in_chans", default=3) * vision.size("temporal_patch_size", default=2)
    patches = pixels * vision.size("patch_size", default=14) ** 2 * width
    layer = 4 * width * width + 4 * width + 3 * width * inner + 2 * inner + width + 2 * width
    merger = width + _linear(merged, merged) + _linear(merged, vision.size("out_hidden_size"))
    return patches + vision.layers("depth") * layer + merger


def moonvit(vision: Fields) -> int:
    """MoonViT of Kimi-K2.5 (LayerNorm, biases) and Kimi-K3 (RMS norm, none), with its projector."""
    width, inner = vision.size("vt_hidden_size"), vision.size("vt_intermediate_size")
    text, merge = vision.size("text_hidden_size"), vision.size("mm_hidden_size") * 4
    biased = vision.flag("attn_bias", default=True)
    norm = 2 if biased else 1
    qkv = vision.size("qkv_hidden_size", default=width)
    layer = _layer(width, inner, bias=biased, norm=norm) + 4 * width * (qkv - width)
    grid = vision.size("init_pos_emb_height", default=64) * vision.size("init_pos_emb_width", default=64)
    patches = _linear(3 * vision.size("patch_size", default=14) ** 2, width, bias=biased)
    projector = norm * width + _linear(merge, merge) + _linear(merge, text)
    return patches + grid * width + vision.layers("vt_num_hidden_layers") * layer + norm * width + projector


def siglip(vision: Fields) -> int:
    """SigLIP (Gemma 3) without the projector: learned positions, a last norm."""
    width, inner = vision.size("hidden_size", default=1152), vision.size("intermediate_size", default=4304)
    patch = vision.size("patch_size", default=14)
    positions = (vision.size("image_size", default=896) // patch) ** 2
    patches = _linear(vision.size("num_channels", default=3) * patch * patch, width) + positions * width
    return patches + vision.layers("num_hidden_layers", default=27) * _layer(width, inner) + 2 * width


def gemma4(vision: Fields) -> int:
    """Gemma 4's encoder: its text layers (gated, four norms, norms per head), positions by row and by column."""
    width, inner = vision.size("hidden_size"), vision.size("intermediate_size")
    heads, size = vision.size("num_attention_heads"), vision.size("head_dim")
    shared = vision.size("num_key_value_heads", default=heads)
    layer = 2 * width * size * (heads + shared) + 3 * width * inner + 4 * width + 2 * size
    patches = 3 * vision.size("patch_size", default=16) ** 2 * width
    positions = 2 * vision.size("position_embedding_size", default=10240) * width
    return patches + positions + vision.layers("num_hidden_layers") * layer + 2 * width


def llama4(vision: Fields) -> int:
    """Llama 4's encoder and adapter; the published sizes where a configuration leaves them out."""
    width, inner = vision.size("hidden_size", default=1408), vision.size("intermediate_size", default=5632)
    patch, out = vision.size("patch_size", default=14), vision.size("vision_output_dim", default=4096)
    positions = (vision.size("image_size", default=336) // patch) ** 2 + 2  # and the class token itself
    layers = vision.layers("num_hidden_layers", default=34) * _layer(width, inner)
    adapter = vision.size("projector_input_dim", default=4096)
    return 3 * patch * patch * width + positions * width + layers + 4 * width + inner * adapter + adapter * out


def pixtral(vision: Fields) -> int:
    """Pixtral (Mistral Small 3.1): gated layers with RMS norms and without biases."""
    width, inner = vision.size("hidden_size", default=1024), vision.size("intermediate_size", default=4096)
    layer = 4 * width * width + 3 * width * inner + 2 * width
    patches = vision.size("num_channels", default=3) * vision.size("patch_size", default=16) ** 2 * width
    return patches + vision.layers("num_hidden_layers", default=24) * layer + width


def clip(vision: Fields) -> int:
    """An encoder like CLIP's with a projector of two layers (MiniMax-M3): positions are rotated, not learned."""
    width, inner = vision.size("hidden_size"), vision.size("intermediate_size")
    out = vision.size("projection_dim")
    patches = vision.size("num_channels", default=3) * vision.size("patch_size") ** 2 * width
    return patches + vision.layers("num_hidden_layers") * _layer(width, inner) + _linear(width, out) + _linear(out, out)
