"""Models of text and images: the text part of the configuration is lowered, image encoders are counted (towers.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from app.graphs.importers.families import towers
from app.graphs.importers.families.config_fields import Fields
from app.graphs.transformers.architecture import Architecture

Family = Callable[[Fields], Architecture]


class Wrapper(NamedTuple):
    """What a multi-modal model type holds.

    text    model type of `text_config` where that does not name it
    vision  weights of the encoder of `vision_config`
    joined  whether one linear layer joins both, from the encoder's width to the text's (with a norm of the encoder's)
    built_in  whether a configuration without a vision_config has the encoder all the same
    """

    text: str
    vision: Callable[[Fields], int]
    joined: bool = False
    built_in: bool = False


WRAPPERS: Mapping[str, Wrapper] = {
    "gemma3": Wrapper("gemma3_text", towers.siglip, joined=True),
    "gemma4": Wrapper("gemma4_text", towers.gemma4, joined=True),
    "kimi_k25": Wrapper("deepseek_v3", towers.moonvit),
    "kimi_k3": Wrapper("kimi_linear", towers.moonvit),
    "llama4": Wrapper("llama4_text", towers.llama4, built_in=True),
    "minimax_m3_vl": Wrapper("minimax_m3", towers.clip),
    "mistral3": Wrapper("mistral", towers.pixtral),
    "qwen2_5_vl": Wrapper("qwen2", towers.qwen2_5_vl),
    "qwen3_5": Wrapper("qwen3_5_text", towers.qwen3_vl),
    "qwen3_5_moe": Wrapper("qwen3_5_moe_text", towers.qwen3_vl),
    "qwen3_vl": Wrapper("qwen3_vl_text", towers.qwen3_vl),
    "qwen3_vl_moe": Wrapper("qwen3_vl_moe_text", towers.qwen3_vl),
}
# Fields of the whole model, which its text part takes where it has none of its own.
_WHOLE = ("architectures", "tie_word_embeddings", "num_labels", "id2label", "quantization_config")


def text_fields(fields: Fields) -> Fields:
    """Return the fields of the text part; the configuration itself where it has no text_config."""
    given = fields.config.get("text_config")
    wrapper = WRAPPERS[fields.model_type]
    if given is None:
        return Fields(fields.config, wrapper.text)
    if not isinstance(given, Mapping):
        fields.refuse("text_config", "must be an object")
    outer = {name: fields.config[name] for name in _WHOLE if fields.config.get(name) is not None}
    own: dict[str, Any] = {name: value for name, value in given.items() if value is not None or name not in outer}
    if "architectures" in outer:
        own.pop("architectures", None)
    named = given.get("model_type")
    return Fields(outer | own, named if isinstance(named, str) and named else wrapper.text, ("text_config",))


def multimodal(fields: Fields, families: Mapping[str, Family]) -> Architecture:
    """Return the architecture of the text part, with the weights of its encoders."""
    wrapper, text = WRAPPERS[fields.model_type], text_fields(fields)
    family = families.get(text.model_type)
    if family is None or text.model_type in WRAPPERS:
        text.refuse("model_type", f"is not known; usual here: {wrapper.text}")
    architecture = family(text)
    vision = fields.inside("vision_config")
    if not vision.config and not wrapper.built_in:
        return architecture
    weights = wrapper.vision(vision)
    width = architecture.stacks[-1].width
    if wrapper.joined:
        weights += vision.size("hidden_size", default=1152) * (width + 1)
    elif fields.model_type == "llama4":
        weights += vision.size("vision_output_dim", default=4096) * width
    elif fields.model_type == "mistral3":
        size, merge = vision.size("hidden_size", default=1024), fields.size("spatial_merge_size", default=2)
        weights += size + merge**2 * size * size + size * width + width * width
    return replace(architecture, towers=weights)
