"""Weights between an encoder of images or sound and the text part of a model, by the configuration and its width."""

from __future__ import annotations

from app.graphs.importers.families.config_fields import Fields
from app.graphs.importers.families.towers import linear_weights


def included(fields: Fields, width: int) -> int:
    """Nothing: counted with the encoder."""
    return 0


def _vision(fields: Fields) -> Fields:
    return fields.inside("vision_config")


def linear(fields: Fields, width: int) -> int:
    """One linear layer (PaliGemma)."""
    return linear_weights(_vision(fields).size("hidden_size", default=1152), width)


def normed_linear(fields: Fields, width: int) -> int:
    """A norm and a linear layer without bias (Gemma 3 and 4)."""
    return _vision(fields).size("hidden_size", default=1152) * (width + 1)


def two_layers(fields: Fields, width: int) -> int:
    """Two linear layers (LLaVA), and the mark of a new line of tiles."""
    bias = fields.flag("multimodal_projector_bias", default=True)
    inner = _vision(fields).size("hidden_size", default=1024)
    return linear_weights(inner, width, bias=bias) + linear_weights(width, width, bias=bias) + width


def merged_linear(fields: Fields, width: int) -> int:
    """A linear layer from `scale_factor` squared patches at once (Idefics3, SmolVLM)."""
    merged = fields.size("scale_factor", default=2) ** 2 * _vision(fields).size("hidden_size", default=1152)
    return merged * width


def merged_layers(fields: Fields, width: int) -> int:
    """A norm and two linear layers from four patches at once (InternVL)."""
    merged = 4 * _vision(fields).size("hidden_size", default=1024)
    return 2 * merged + linear_weights(merged, width) + linear_weights(width, width)


def aya(fields: Fields, width: int) -> int:
    """A norm and a gated layer from merged patches (Aya Vision)."""
    merged = fields.size("downsample_factor", default=2) ** 2 * _vision(fields).size("hidden_size", default=1152)
    inner = fields.size("alignment_intermediate_size", default=width)
    return 2 * merged + linear_weights(merged, inner) + linear_weights(inner // 2, width)


def kimi_vl(fields: Fields, width: int) -> int:
    """A norm and two linear layers from four patches at once (Kimi-VL)."""
    inner = _vision(fields).size("hidden_size", default=1152)
    return 2 * inner + linear_weights(4 * inner, 4 * inner) + linear_weights(4 * inner, width)


def llama4(fields: Fields, width: int) -> int:
    """A linear layer without bias (Llama 4)."""
    return _vision(fields).size("vision_output_dim", default=4096) * width


def mistral3(fields: Fields, width: int) -> int:
    """A norm, a merger of patches, and two linear layers without bias (Mistral Small 3.1)."""
    size, merge = _vision(fields).size("hidden_size", default=1024), fields.size("spatial_merge_size", default=2)
    return size + merge**2 * size * size + size * width + width * width


def mllama(fields: Fields, width: int) -> int:
    """A linear layer from the encoder's outputs (Llama 3.2 Vision)."""
    return linear_weights(_vision(fields).size("vision_output_dim", default=7680), width)


def sound_linear(fields: Fields, width: int) -> int:
    """One linear layer from the encoder of sound (Qwen2-Audio)."""
    return linear_weights(fields.inside("audio_config").size("d_model", "hidden_size", default=1280), width)


def voxtral(fields: Fields, width: int) -> int:
    """Two linear layers without bias, from four frames at once (Voxtral)."""
    return fields.inside("audio_config").size("intermediate_size", default=5120) * width + width * width
