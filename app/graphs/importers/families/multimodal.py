"""Models of text and images: the text part of the configuration is lowered, image encoders are counted (towers.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from app.graphs.importers.families import projectors, towers
from app.graphs.importers.families.config_fields import Fields
from app.graphs.transformers.architecture import Architecture

Family = Callable[[Fields], Architecture]


class Wrapper(NamedTuple):
    """What a multi-modal model type holds.

    text    model type of `text_config` where that does not name it
    vision  weights of the encoder of `vision_config`
    projector  weights between the encoder and the text part, by the configuration and the text's width
    place   the object that holds the text part's fields
    sound   weights of the encoder of `audio_config`
    within  the object that holds all of these, if not the configuration itself
    built_in  whether a configuration without a vision_config has the encoder all the same
    defaults  sizes of the text part that its publisher left out, by its model type
    """

    text: str
    vision: Callable[[Fields], int] = towers.no_tower
    projector: Callable[[Fields, int], int] = projectors.included
    place: str = "text_config"
    sound: Callable[[Fields], int] = towers.no_tower
    within: str = ""
    built_in: bool = False
    defaults: Mapping[str, Mapping[str, Any]] = MappingProxyType({})


# Sizes of the classes that LLaVA's configurations rely on (transformers' LlamaConfig and MistralConfig).
_SEVEN_BILLION = {
    "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
    "vocab_size": 32000,
}  # fmt: skip
_LLAVA_TEXTS = {
    "llama": _SEVEN_BILLION,
    "mistral": _SEVEN_BILLION | {"intermediate_size": 14336, "num_key_value_heads": 8},
}

WRAPPERS: Mapping[str, Wrapper] = {
    "aya_vision": Wrapper("cohere2", towers.siglip, projectors.aya),
    "gemma3": Wrapper("gemma3_text", towers.siglip, projectors.normed_linear),
    "gemma3n": Wrapper("gemma3n_text", towers.mobilenet, sound=towers.conformer),
    "gemma4": Wrapper("gemma4_text", towers.gemma4, projectors.normed_linear, sound=towers.conformer),
    "glm4v": Wrapper("glm4", towers.glm4v),
    "glm4v_moe": Wrapper("glm4_moe", towers.glm4v),
    "idefics3": Wrapper("llama", towers.siglip, projectors.merged_linear),
    "internvl": Wrapper("qwen2", towers.internvit, projectors.merged_layers),
    "internvl_chat": Wrapper("qwen2", towers.internvit, projectors.merged_layers, place="llm_config"),
    "kimi_k25": Wrapper("deepseek_v3", towers.moonvit),
    "kimi_k3": Wrapper("kimi_linear", towers.moonvit),
    "kimi_vl": Wrapper("deepseek_v3", towers.kimi_vl, projectors.kimi_vl),
    "llama4": Wrapper("llama4_text", towers.llama4, projectors.llama4, built_in=True),
    "llava": Wrapper("llama", towers.of_its_type, projectors.two_layers, defaults=_LLAVA_TEXTS),
    "llava_next": Wrapper("llama", towers.of_its_type, projectors.two_layers, defaults=_LLAVA_TEXTS),
    "llava_onevision": Wrapper("qwen2", towers.of_its_type, projectors.two_layers),
    "minimax_m3_vl": Wrapper("minimax_m3", towers.clip),
    "mistral3": Wrapper("mistral", towers.pixtral, projectors.mistral3),
    "mllama": Wrapper("mllama_text_model", towers.mllama, projectors.mllama),
    "paligemma": Wrapper("gemma", towers.siglip, projectors.linear),
    "qwen2_5_omni": Wrapper("qwen2", towers.qwen2_5_vl, within="thinker_config", sound=towers.qwen_omni),
    "qwen2_audio": Wrapper("qwen2", sound=towers.whisper, projector=projectors.sound_linear),
    "qwen2_vl": Wrapper("qwen2", towers.qwen2_vl),
    "qwen2_5_vl": Wrapper("qwen2", towers.qwen2_5_vl),
    "qwen3_omni_moe": Wrapper("qwen3_moe", towers.qwen3_vl, within="thinker_config", sound=towers.qwen3_omni),
    "qwen3_5": Wrapper("qwen3_5_text", towers.qwen3_vl),
    "qwen3_5_moe": Wrapper("qwen3_5_moe_text", towers.qwen3_vl),
    "qwen3_vl": Wrapper("qwen3_vl_text", towers.qwen3_vl),
    "qwen3_vl_moe": Wrapper("qwen3_vl_moe_text", towers.qwen3_vl),
    "smolvlm": Wrapper("llama", towers.siglip, projectors.merged_linear),
    "step3_vl": Wrapper("step3_text", towers.step3),
    "voxtral": Wrapper("llama", sound=towers.whisper, projector=projectors.voxtral),
}
# Fields of the whole model, which its text part takes where it has none of its own.
_WHOLE = ("architectures", "tie_word_embeddings", "num_labels", "id2label", "quantization_config")


def text_fields(fields: Fields) -> Fields:
    """Return the fields of the text part; the configuration itself where it has no text_config."""
    wrapper = WRAPPERS[fields.model_type]
    given = fields.config.get(wrapper.place)
    if given is None:
        return Fields(fields.config, wrapper.text, fields.within)
    if not isinstance(given, Mapping):
        fields.refuse(wrapper.place, "must be an object")
    outer = {name: fields.config[name] for name in _WHOLE if fields.config.get(name) is not None}
    own: dict[str, Any] = {name: value for name, value in given.items() if value is not None or name not in outer}
    if "architectures" in outer:
        own.pop("architectures", None)
    named = given.get("model_type")
    kind = named if isinstance(named, str) and named else wrapper.text
    text = Fields(outer | own, kind, (*fields.within, wrapper.place))
    return text.having(**wrapper.defaults.get(kind, {}))


def multimodal(fields: Fields, families: Mapping[str, Family]) -> Architecture:
    """Return the architecture of the text part, with the weights of its encoders."""
    wrapper = WRAPPERS[fields.model_type]
    if wrapper.within and wrapper.within in fields.config:
        fields = fields.inside(wrapper.within)
    text = text_fields(fields)
    family = families.get(text.model_type)
    if family is None or text.model_type in WRAPPERS:
        text.refuse("model_type", f"is not known; usual here: {wrapper.text}")
    architecture = family(text)
    vision, sound = fields.inside("vision_config"), fields.inside("audio_config")
    weights = architecture.towers
    if vision.config or wrapper.built_in:
        weights += wrapper.vision(vision)
    if sound.config:
        weights += wrapper.sound(sound)
    if vision.config or sound.config or wrapper.built_in:
        weights += wrapper.projector(fields, architecture.stacks[-1].width)
    return replace(architecture, towers=weights)
