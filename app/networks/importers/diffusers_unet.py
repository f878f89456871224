"""Importer of Diffusers' `unet/config.json`, a UNet2DConditionModel: Stable Diffusion 1 and 2, and SDXL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.networks.diffusion.unet import SIDE, Level, UNet
from app.networks.importers.families.config_fields import MOST_LAYERS, Fields

CLASS = "UNet2DConditionModel"
_MOST_LEVELS = 8
# Blocks of a level on the way down and up: whether it has transformers.
_DOWN: Mapping[str, bool] = {"DownBlock2D": False, "CrossAttnDownBlock2D": True}
_UP: Mapping[str, bool] = {"UpBlock2D": False, "CrossAttnUpBlock2D": True}


def unet(fields: Fields) -> UNet:
    """Return the U-Net of a configuration; raises BadInput with the name of an invalid field."""
    channels = fields.config.get("block_out_channels", [320, 640, 1280, 1280])
    if not isinstance(channels, list) or not 1 <= len(channels) <= _MOST_LEVELS:
        fields.refuse("block_out_channels", f"must be a list of 1 to {_MOST_LEVELS} whole numbers")
    each = fields.sizes("block_out_channels", len(channels)) or channels
    # Diffusers calls the number of heads `attention_head_dim`, unless `num_attention_heads` is given.
    heads = _each(fields, "num_attention_heads", len(each), None) or _each(fields, "attention_head_dim", len(each), 8)
    layers = _each(fields, "transformer_layers_per_block", len(each), 1) or []
    down, up = (
        _blocks(fields, name, known, len(each))
        for name, known in (("down_block_types", _DOWN), ("up_block_types", _UP))
    )
    fields.word("mid_block_type", choices={"UNetMidBlock2DCrossAttn": True}, default="UNetMidBlock2DCrossAttn")
    levels = []
    for k, (width, number, many) in enumerate(zip(each, heads or [], layers, strict=True)):
        if width < 1 or number < 1 or width % number:
            fields.refuse("attention_head_dim", f"must divide block_out_channels, {width}: it is the number of heads")
        levels.append(Level(width, number, many * down[k], many * up[-1 - k]))
    pooled = fields.size("projection_class_embeddings_input_dim", default=1)
    return UNet(
        (fields.size("in_channels", default=4), fields.size("out_channels", default=4)), tuple(levels),
        fields.layers("layers_per_block", default=2), fields.size("cross_attention_dim", default=1280),
        pooled if fields.given("addition_embed_type") is not None else 0, SIDE * fields.size("sample_size", default=64),
        max(layers[-1], 1),
    )  # fmt: skip


def pipeline_of(config: Mapping[str, Any]) -> str:
    """Return the name of the pipeline whose text encoders give features of this size."""
    return f"{CLASS} {config.get('cross_attention_dim', 1280)}"


def _each(fields: Fields, name: str, levels: int, default: int | None) -> list[int] | None:
    """Return a whole number of each level, of which the configuration has one or a list; None: it has none."""
    if isinstance(fields.given(name), list):
        return fields.sizes(name, levels, MOST_LAYERS)
    if default is None and fields.given(name) is None:
        return None
    return [fields.size(name, default=default, most=MOST_LAYERS)] * levels


def _blocks(fields: Fields, name: str, known: Mapping[str, bool], levels: int) -> list[bool]:
    types = fields.given(name)
    if not isinstance(types, list) or len(types) != levels or not all(isinstance(k, str) and k in known for k in types):
        fields.refuse(name, f"must be a list of {levels} of {', '.join(known)}")
    return [known[kind] for kind in types]
