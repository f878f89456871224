"""Weights of the image encoders of multi-modal models, and of what projects their output to the text's width.

They are counted, since they stay in memory; they do not run, since the text alone does (prompts of text).
"""

from __future__ import annotations

from app.graphs.importers.families.config_fields import Fields


def _layer(width: int, inner: int, *, bias: bool = True, norm: int = 2) -> int:
    """Return the weights of one encoder layer; `norm`: vectors of a norm."""
    biases = 5 * width + inner if bias else 0
    return 4 * width * width + 2 * width * inner + biases + 2 * norm * width


def linear_weights(inputs: int, outputs: int, *, bias: bool = True) -> int:
    """Return the weights of a linear layer."""
    return inputs * outputs + (outputs if bias else 0)


def qwen3_vl(vision: Fields) -> int:
    """Qwen3-VL and Qwen3.5: patches over two frames, learned positions, mergers of 2 x 2 patches (DeepStack: more)."""
    width, inner = vision.size("hidden_size"), vision.size("intermediate_size")
    merged = width * vision.size("spatial_merge_size", default=2) ** 2
    out = vision.size("out_hidden_size")
    pixels = vision.size("in_channels", default=3) * vision.size("temporal_patch_size", default=2)
    patches = linear_weights(pixels * vision.size("patch_size", default=16) ** 2, width)
    positions = vision.size("num_position_embeddings", default=2304) * width
    merger = linear_weights(merged, merged) + linear_weights(merged, out)
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
    merger = width + linear_weights(merged, merged) + linear_weights(merged, vision.size("out_hidden_size"))
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
    patches = linear_weights(3 * vision.size("patch_size", default=14) ** 2, width, bias=biased)
    projector = norm * width + linear_weights(merge, merge) + linear_weights(merge, text)
    return patches + grid * width + vision.layers("vt_num_hidden_layers") * layer + norm * width + projector


def siglip(vision: Fields) -> int:
    """SigLIP (Gemma 3) without the projector: learned positions, a last norm."""
    width, inner = vision.size("hidden_size", default=1152), vision.size("intermediate_size", default=4304)
    patch = vision.size("patch_size", default=14)
    positions = (vision.size("image_size", default=896) // patch) ** 2
    patches = linear_weights(vision.size("num_channels", default=3) * patch * patch, width) + positions * width
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
    return (
        patches
        + vision.layers("num_hidden_layers") * _layer(width, inner)
        + linear_weights(width, out)
        + linear_weights(out, out)
    )


def no_tower(config: Fields) -> int:
    """No encoder that is known."""
    return 0


def clip_vit(vision: Fields) -> int:
    """CLIP's image encoder (LLaVA): a class token, learned positions, a norm before and after."""
    width, inner = vision.size("hidden_size", default=1024), vision.size("intermediate_size", default=4096)
    patch = vision.size("patch_size", default=14)
    positions = (vision.size("image_size", default=336) // patch) ** 2 + 2  # and the class token itself
    patches = vision.size("num_channels", default=3) * patch * patch * width
    return (
        patches + positions * width + 4 * width + vision.layers("num_hidden_layers", default=24) * _layer(width, inner)
    )


def of_its_type(vision: Fields) -> int:
    """The encoder that `model_type` of the vision_config names."""
    known = {"clip_vision_model": clip_vit, "siglip_vision_model": siglip, "pixtral": pixtral}
    return known[vision.word("model_type", choices=known, default="clip_vision_model")](vision)


def internvit(vision: Fields) -> int:
    """InternViT: layers with two scales, and a class token; 6B has RMS norms, and norms of queries and keys."""
    width, inner = vision.size("hidden_size", default=1024), vision.size("intermediate_size", default=4096)
    patch, image = _square(vision, "patch_size", 14), _square(vision, "image_size", 448)
    layers = vision.layers("num_hidden_layers", default=24)
    plain = vision.word("norm_type", choices={"rms_norm": 1, "layer_norm": 2}, default="layer_norm") == "rms_norm"
    biased = vision.flag("attention_bias", default=False) or vision.flag("qkv_bias", default=not plain)
    layer = _layer(width, inner, norm=1 if plain else 2) + 2 * width - (0 if biased else 3 * width)
    normed = vision.flag("use_qk_norm", default=False) or vision.flag("qk_normalization", default=False)
    patches = linear_weights(vision.size("num_channels", default=3) * patch * patch, width)
    return patches + ((image // patch) ** 2 + 2) * width + layers * (layer + 2 * width * normed)


def _square(vision: Fields, name: str, default: int) -> int:
    """Return the side of a size that is given as one number or as two."""
    value = vision.given(name)
    if isinstance(value, list) and value:
        return Fields({name: value[0]}, vision.model_type, vision.within).size(name)
    return vision.size(name, default=default)


def qwen2_vl(vision: Fields) -> int:
    """Qwen2-VL: LayerNorms, no learned positions, a merger of 2 x 2 patches."""
    width, out = vision.size("embed_dim", default=1280), vision.size("hidden_size", default=3584)
    inner = vision.size("mlp_ratio", default=4) * width
    merged = width * vision.size("spatial_merge_size", default=2) ** 2
    pixels = vision.size("in_channels", "in_chans", default=3) * vision.size("temporal_patch_size", default=2)
    patches = pixels * vision.size("patch_size", "spatial_patch_size", default=14) ** 2 * width
    merger = 2 * width + linear_weights(merged, merged) + linear_weights(merged, out)
    return patches + vision.layers("depth", default=32) * _layer(width, inner) + merger


def glm4v(vision: Fields) -> int:
    """GLM-4.1V and 4.5V: gated layers with RMS norms, learned positions, a gated merger."""
    width, out = vision.size("hidden_size", default=1536), vision.size("out_hidden_size", default=4096)
    inner, patch = vision.size("intermediate_size", default=13696), vision.size("patch_size", default=14)
    pixels = vision.size("in_channels", default=3) * vision.size("temporal_patch_size", default=2)
    merge, bias = vision.size("spatial_merge_size", default=2) ** 2, vision.flag("attention_bias", default=False)
    layer = 4 * width * width + 3 * width * out + 2 * width + 4 * width * bias
    positions = (vision.size("image_size", default=336) // patch) ** 2 * width
    merger = linear_weights(merge * width, out) + out * out + 2 * out + 3 * out * inner
    patches = linear_weights(pixels * patch * patch, width)
    return patches + positions + vision.layers("depth", default=24) * layer + merger + 2 * width


def kimi_vl(vision: Fields) -> int:
    """MoonViT of Kimi-VL, without its projector."""
    width, inner = vision.size("hidden_size", default=1152), vision.size("intermediate_size", default=4304)
    grid = vision.size("init_pos_emb_height", default=64) * vision.size("init_pos_emb_width", default=64)
    patches = linear_weights(3 * vision.size("patch_size", default=14) ** 2, width)
    layers = vision.layers("num_hidden_layers", default=27) * _layer(width, inner)
    return patches + grid * width + layers + 2 * width


def mllama(vision: Fields) -> int:
    """Llama 3.2 Vision: local and global layers without biases of attention, positions by tile."""
    width, inner = vision.size("hidden_size", default=1280), vision.size("intermediate_size", default=5120)
    patch, tiles = vision.size("patch_size", default=14), vision.size("max_num_tiles", default=4)
    ratios = vision.given("supported_aspect_ratios")
    kinds = 1 + (len(ratios) if isinstance(ratios, list) else vision.size("max_aspect_ratio_id", default=8))
    positions = (vision.size("image_size", default=448) // patch) ** 2 + 1
    layer = _layer(width, inner) - 4 * width
    count = vision.layers("num_hidden_layers", default=32) + vision.layers("num_global_layers", default=8)
    places = positions * width * (1 + kinds * tiles) + 2 * kinds * tiles * width
    patches = vision.size("num_channels", default=3) * patch * patch * width
    return patches + places + width + 4 * width + count * layer


def whisper(sound: Fields) -> int:
    """Whisper's encoder (Qwen2-Audio, Voxtral): two convolutions, learned positions, a last norm."""
    width, inner = (
        sound.size("d_model", "hidden_size", default=1280),
        sound.size("encoder_ffn_dim", "intermediate_size"),
    )
    frames = sound.size("max_source_positions", default=1500)
    layers = sound.layers("encoder_layers", "num_hidden_layers", default=32) * (_layer(width, inner) - width)
    return _convolutions(sound, width) + frames * width + layers + 2 * width


def _convolutions(sound: Fields, width: int) -> int:
    return linear_weights(3 * sound.size("num_mel_bins", default=128), width) + linear_weights(3 * width, width)


def qwen_omni(sound: Fields) -> int:
    """Qwen2.5-Omni's encoder of sound: Whisper's with fixed positions, and a projection."""
    width, inner = sound.size("d_model", default=1280), sound.size("encoder_ffn_dim", default=5120)
    layers = sound.layers("encoder_layers", default=32) * (_layer(width, inner) - width)
    out = sound.size("output_dim", default=3584)
    return _convolutions(sound, width) + layers + 2 * width + linear_weights(width, out) + 2 * width


def qwen3_omni(sound: Fields) -> int:
    """Qwen3-Omni's encoder of sound: three convolutions over time and frequency, layers, two projections."""
    width, inner = sound.size("d_model", default=1280), sound.size("encoder_ffn_dim", default=5120)
    deep, out = sound.size("downsample_hidden_size", default=480), sound.size("output_dim", default=3584)
    bands = (sound.size("num_mel_bins", default=128) + 7) // 8
    convolutions = linear_weights(9, deep) + 2 * linear_weights(9 * deep, deep) + deep * bands * width
    layers = sound.layers("encoder_layers", default=32) * _layer(width, inner)
    return convolutions + layers + 2 * width + linear_weights(width, width) + linear_weights(width, out)


def step3(vision: Fields) -> int:
    """Step-3's encoder, two convolutions that merge patches, and a projection."""
    width, inner = vision.size("hidden_size", default=1792), vision.size("intermediate_size", default=3072)
    out, patch = vision.size("output_hidden_size", default=4096), vision.size("patch_size", default=14)
    positions = (vision.size("image_size", default=728) // patch) ** 2 + 2
    patches = linear_weights(vision.size("num_channels", default=3) * patch * patch, width)
    layers = vision.layers("num_hidden_layers", default=63) * _layer(width, inner)
    return patches + positions * width + layers + linear_weights(4 * width, out) + linear_weights(9 * out, 2 * out)


def conformer(sound: Fields) -> int:
    """Encoder of sound of Gemma 3n and 4: layers of two feed-forward parts, attention and a convolution."""
    width = sound.size("hidden_size", default=1536)
    layers = sound.layers("conf_num_hidden_layers", "num_hidden_layers", default=12)
    out = sound.size("output_proj_dims", default=0, least=0)
    return layers * (24 * width * width + 14 * width) + width * width + (linear_weights(width, out) if out else 0)


def mobilenet(vision: Fields) -> int:
    """MobileNetV5's encoder of images of Gemma 3n, which has one size; the projection to the text is another."""
    vision.word("architecture", choices={"mobilenetv5_300m_enc": True}, default="mobilenetv5_300m_enc")
    return 294_284_096 + 2048 * 2048
