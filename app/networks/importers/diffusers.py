"""Importer of Diffusers' `transformer/config.json` or `unet/config.json`: `_class_name` selects its family.

The family reads the configuration into a Denoiser (app.networks.diffusion.architecture), which
app.networks.diffusion.lowering lowers. What decides tokens and is not in the configuration is the family's: the
compression of its autoencoder (8 x 8 pixels and 4 frames; SANA's 32 x 32), and the tokens its pipeline pads prompts to.
Text encoders and autoencoders have configurations of their own (`text_encoder/config.json`, `vae/config.json`), which a
request does not hold: their sizes are those of the published pipelines (seed_data/diffusion_pipelines.json), with the
tokens that these pad prompts to: with SANA's instruction, and HunyuanVideo's template of 95 tokens, before the prompt.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import groupby
from typing import Any

from app.config import SEED_DATA
from app.networks.diffusion.architecture import (
    Block,
    CrossBlock,
    Denoiser,
    Grid,
    HeadNorm,
    ImageDecoder,
    JointBlock,
    SingleBlock,
    Sizes,
    TextBlock,
    TextEncoder,
)
from app.networks.diffusion.lowering import write, write_decoder, write_encoders
from app.networks.diffusion.unet import UNet, write_unet
from app.networks.importers import diffusers_unet
from app.networks.importers.families.config_fields import CONFIG, Fields, shown
from app.networks.run import CLASS_NAME, Run, refuse
from app.tables.workload import Workload

_TABLES: Mapping[str, Any] = json.loads((SEED_DATA / "diffusion_pipelines.json").read_text("utf-8"))

# Pixels per side that an autoencoder compresses to one latent pixel, and frames after the first.
_SIDE, _SANA_SIDE, _FRAMES = 8, 32, 4
# Features of a time step's sinusoids.
_TIME = 256
# Largest patch, latent pixels or frames.
_MOST_PATCH = 1024
_HEAD_NORMS: Mapping[str, HeadNorm] = {"rms_norm": "rms_norm", "rms_norm_across_heads": "whole_rms_norm"}


def lower(config: Mapping[str, Any], run: Run) -> Workload:
    """Return one device's rows of the run's part; raises BadInput with the name of an invalid field."""
    model = read(config)
    if run.part == "text_encoders":
        if not model.encoders:
            refuse(("workload", "part"), "the text encoders of this network are not known here: use denoiser")
        return write_encoders(model.encoders, run)
    if run.part == "autoencoder":
        return write_decoder(model.decoder, run)
    return write_unet(model, run) if isinstance(model, UNet) else write(model, run)


def read(config: Mapping[str, Any]) -> Denoiser | UNet:
    """Return the denoiser of a configuration; raises BadInput with the name of an invalid field."""
    given = config.get(CLASS_NAME)
    family = _FAMILIES.get(given) if isinstance(given, str) else None
    if family is None:
        refuse((*CONFIG, CLASS_NAME), f"{shown(given)} is not known; known: {', '.join(_FAMILIES)}")
    name = diffusers_unet.pipeline_of(config) if given == diffusers_unet.CLASS else str(given)
    return replace(family(Fields(config, str(given))), **_pipeline(name))


def _pipeline(name: str) -> dict[str, Any]:
    """Return what a pipeline runs once per image: its encoders of the prompt, and the decoder of images, if any."""
    pipeline = _TABLES["pipelines"].get(name, {"encoders": {}})
    encoders = [TextEncoder(**_TABLES["encoders"][of] | changed) for of, changed in pipeline["encoders"].items()]
    decoder = _TABLES["decoders"].get(pipeline.get("decoder"))
    known = decoder and ImageDecoder(**decoder | {"channels": tuple(decoder["channels"])})
    return {"encoders": tuple(encoders), "decoder": known}


def _heads(fields: Fields) -> tuple[int, int, int]:
    """Return the width, heads, and elements of a head."""
    heads, size = fields.size("num_attention_heads"), fields.size("attention_head_dim")
    return heads * size, heads, size


def _time(width: int, *after: int) -> tuple[Sizes, ...]:
    """Return the layers of a time step's (or the guidance's) embedding."""
    return ((_TIME, width), (width, width), *((width, features) for features in after))


def _is_side(size: object) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and 1 <= size <= _MOST_PATCH


def _head_norm(fields: Fields) -> HeadNorm:
    given = fields.config.get("qk_norm")
    return "none" if given is None else _HEAD_NORMS[fields.word("qk_norm", choices=_HEAD_NORMS, default="")]


def _flux(fields: Fields) -> Denoiser:
    """FLUX.1: double blocks, then single ones; the latent comes in patches of 2 x 2."""
    width, heads, size = _heads(fields)
    patch, channels = fields.size("patch_size", default=1), fields.size("in_channels")
    pooled = fields.size("pooled_projection_dim")
    guided = (_time(width),) * fields.flag("guidance_embeds", default=False)
    double = JointBlock(4 * width, ((width, 6 * width),) * 2, "rms_norm", rotary=True)
    single = SingleBlock(4 * width, ((width, 3 * width),), "rms_norm")
    return Denoiser(
        width, heads, size, Grid(2 * _SIDE * patch, channels * patch**2), 512,
        (_time(width), *guided, ((pooled, width), (width, width))), ((fields.size("joint_attention_dim"), width),),
        ((double, fields.layers("num_layers")), (single, fields.layers("num_single_layers"))),
        ((width, 2 * width),), fields.size("out_channels", default=channels) * patch**2,
    )  # fmt: skip


def _sd3(fields: Fields) -> Denoiser:
    """Stable Diffusion 3 and 3.5: joint blocks, in the last of which the text ends."""
    width, heads, size = _heads(fields)
    patch, channels, pooled = (
        fields.size("patch_size"),
        fields.size("in_channels"),
        fields.size("pooled_projection_dim"),
    )
    layers, norm = fields.layers("num_layers"), _head_norm(fields)
    twice = fields.indices("dual_attention_layers", layers)
    each = []
    for k in range(layers):
        again, ends = k in twice, k == layers - 1
        modulations = ((width, (9 if again else 6) * width), (width, (2 if ends else 6) * width))
        each.append(JointBlock(4 * width, modulations, norm, text_ends=ends, image_again=again))
    return Denoiser(
        width, heads, size, Grid(_SIDE * patch, channels * patch**2), 77 + 256,
        (_time(width), ((pooled, width), (width, width))), ((fields.size("joint_attention_dim"), width),),
        tuple((block, len(list(alike))) for block, alike in groupby(each)),
        ((width, 2 * width),), fields.size("out_channels", default=channels) * patch**2,
        held=fields.size("pos_embed_max_size", default=96) ** 2 * width,
    )  # fmt: skip


def _pixart(fields: Fields) -> Denoiser:
    """PixArt-alpha and PixArt-Sigma: all blocks share one modulation of the time step."""
    width, heads, size = _heads(fields)
    patch, channels = fields.size("patch_size"), fields.size("in_channels")
    at_large = fields.size("sample_size", default=128) == 128
    sized = (((_TIME, width // 3), (width // 3, width // 3)),) * (
        2 * fields.flag("use_additional_conditions", default=at_large)
    )
    block = CrossBlock(
        4 * width, fields.size("cross_attention_dim", default=width), heads, size, table=6,
        bias=fields.flag("attention_bias", default=True),
    )  # fmt: skip
    return Denoiser(
        width, heads, size, Grid(_SIDE * patch, channels * patch**2), 300,
        (_time(width, 6 * width), *sized), ((fields.size("caption_channels"), width), (width, width)),
        ((block, fields.layers("num_layers")),), (), fields.size("out_channels", default=channels) * patch**2,
        held=2 * width,
    )  # fmt: skip


def _hunyuan_dit(fields: Fields) -> Denoiser:
    """HunyuanDiT from 1.2 on: the second half of the blocks takes the first half's outputs."""
    width, heads, size = _heads(fields)
    patch, channels, layers = fields.size("patch_size"), fields.size("in_channels"), fields.layers("num_layers")
    text, t5 = fields.size("cross_attention_dim"), fields.size("cross_attention_dim_t5")
    pooled, lengths = fields.size("pooled_projection_dim"), (fields.size("text_len"), fields.size("text_len_t5"))
    if fields.flag("use_style_cond_and_image_meta_size", default=True):
        fields.refuse("use_style_cond_and_image_meta_size", "must be false: HunyuanDiT before 1.2 is not known here")

    def block(*, skip: bool) -> CrossBlock:
        return CrossBlock(
            int(width * fields.ratio("mlp_ratio", default=4.0)), text, heads, size, "layer_norm", rotary=True,
            text_rotary=True, modulations=((width, width),), modulates=False, text_norm=True, affine=2, precise=True,
            skip=skip,
        )  # fmt: skip

    skips = (layers - 1) // 2
    pooler = (lengths[1] + 1) * t5 + 3 * (t5 * t5 + t5) + t5 * pooled + pooled
    return Denoiser(
        width, heads, size, Grid(_SIDE * patch, channels * patch**2), sum(lengths),
        (_time(width), ((pooled, 4 * width), (4 * width, width))), ((t5, 4 * t5), (4 * t5, text)),
        tuple((part, many) for part, many in ((block(skip=False), layers - skips), (block(skip=True), skips)) if many),
        ((width, 2 * width),), (2 if fields.flag("learn_sigma", default=True) else 1) * channels * patch**2,
        held=sum(lengths) * text + pooler,
    )  # fmt: skip


def _sana(fields: Fields) -> Denoiser:
    """SANA and SANA 1.5: linear attention over images compressed 32 x 32, feed-forward parts that convolve."""
    width, heads, size = _heads(fields)
    patch, channels = fields.size("patch_size", default=1), fields.size("in_channels")
    block = CrossBlock(
        int(width * fields.ratio("mlp_ratio", default=2.5)), fields.size("cross_attention_dim", default=width),
        fields.size("num_cross_attention_heads"), fields.size("cross_attention_head_dim"), _head_norm(fields),
        bias=fields.flag("attention_bias", default=False), linear=True, convolves=True, table=6,
    )  # fmt: skip
    guided = (_time(width),) * fields.flag("guidance_embeds", default=False)
    return Denoiser(
        width, heads, size, Grid(_SANA_SIDE * patch, channels * patch**2), 300,
        (_time(width, 6 * width), *guided), ((fields.size("caption_channels"), width), (width, width)),
        ((block, fields.layers("num_layers")),), (), fields.size("out_channels", default=channels) * patch**2,
        held=3 * width,
    )  # fmt: skip


def _wan(fields: Fields) -> Denoiser:
    """Wan 2.1, text to video."""
    if fields.present("image_dim", default=False) or fields.present("added_kv_proj_dim", default=False):
        fields.refuse("image_dim", "must be null: attention to an input image is not known here")
    width, heads, size = _heads(fields)
    patch = fields.config.get("patch_size", [1, 2, 2])
    if not isinstance(patch, list) or len(patch) != 3 or not all(_is_side(size) for size in patch):
        fields.refuse("patch_size", f"must be frames, height and width of a patch, each 1 to {_MOST_PATCH}")
    if patch[1] != patch[2]:
        fields.refuse("patch_size", "must have equal height and width")
    channels, cells = fields.size("in_channels"), patch[0] * patch[1] * patch[2]
    normed = fields.flag("cross_attn_norm", default=True)
    block = CrossBlock(
        fields.size("ffn_dim"), width, heads, size, _head_norm(fields), rotary=True, table=6, text_norm=normed,
        affine=int(normed), precise=True,
    )  # fmt: skip
    time = ((fields.size("freq_dim", default=_TIME), width), (width, width), (width, 6 * width))
    return Denoiser(
        width, heads, size, Grid(_SIDE * patch[1], channels * cells, _FRAMES, patch[0]), 512,
        (time,), ((fields.size("text_dim"), width), (width, width)), ((block, fields.layers("num_layers")),), (),
        fields.size("out_channels", default=channels) * cells, held=2 * width,
    )  # fmt: skip


def _cogvideox(fields: Fields) -> Denoiser:
    """CogVideoX 1.0 and 1.5: one stream's weights for text and video."""
    width, heads, size = _heads(fields)
    patch, depth = fields.size("patch_size", default=2), fields.size("patch_size_t", default=1)
    channels, time = fields.size("in_channels", default=16), fields.size("time_embed_dim", default=512)
    affine, cells = fields.flag("norm_elementwise_affine", default=True), patch**2 * depth
    block = JointBlock(
        4 * width, ((time, 6 * width),) * 2, "layer_norm", shared=True, affine=affine,
        rotary=fields.flag("use_rotary_positional_embeddings", default=False),
        bias=fields.flag("attention_bias", default=True),
    )  # fmt: skip
    frames = fields.size("temporal_compression_ratio", default=_FRAMES)
    return Denoiser(
        width, heads, size, Grid(_SIDE * patch, channels * cells, frames, depth),
        fields.size("max_text_seq_length", default=226), (((width, time), (time, time)),),
        ((fields.size("text_embed_dim", default=4096), width),), ((block, fields.layers("num_layers")),),
        ((time, 2 * width),), fields.size("out_channels", default=channels) * cells,
        patch_bias=fields.flag("patch_bias", default=True), held=4 * width if affine else 0,
    )  # fmt: skip


def _hunyuan_video(fields: Fields) -> Denoiser:
    """HunyuanVideo: double blocks, then single ones, behind a refiner of the text."""
    width, heads, size = _heads(fields)
    patch, depth = fields.size("patch_size", default=2), fields.size("patch_size_t", default=1)
    channels, cells = fields.size("in_channels", default=16), patch**2 * depth
    inner, norm = int(width * fields.ratio("mlp_ratio", default=4.0)), _head_norm(fields)
    text, pooled = fields.size("text_embed_dim", default=4096), fields.size("pooled_projection_dim", default=768)
    guided = (_time(width),) * fields.flag("guidance_embeds", default=True)
    blocks: tuple[tuple[Block, int], ...] = (
        (TextBlock(inner, ((width, 2 * width),)), fields.layers("num_refiner_layers", default=2)),
        (JointBlock(inner, ((width, 6 * width),) * 2, norm, rotary=True), fields.layers("num_layers")),
        (SingleBlock(inner, ((width, 3 * width),), norm), fields.layers("num_single_layers")),
    )
    return Denoiser(
        width, heads, size, Grid(_SIDE * patch, channels * cells, _FRAMES, depth), 256,
        (_time(width), *guided, ((pooled, width), (width, width)), _time(width), ((text, width), (width, width))),
        ((text, width),), blocks, ((width, 2 * width),), fields.size("out_channels", default=channels) * cells,
    )  # fmt: skip


_FAMILIES: Mapping[str, Callable[[Fields], Denoiser | UNet]] = {
    "CogVideoXTransformer3DModel": _cogvideox,
    "FluxTransformer2DModel": _flux,
    "HunyuanDiT2DModel": _hunyuan_dit,
    "HunyuanVideoTransformer3DModel": _hunyuan_video,
    "PixArtTransformer2DModel": _pixart,
    "SD3Transformer2DModel": _sd3,
    "SanaTransformer2DModel": _sana,
    diffusers_unet.CLASS: diffusers_unet.unet,
    "WanTransformer3DModel": _wan,
}
