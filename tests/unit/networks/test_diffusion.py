"""Diffusion transformers by their Diffusers configurations: parameters, tokens, kernels, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

from app.errors import BadInput
from app.networks.builtin import find_config, names
from app.networks.diffusion.lowering import tokens_of
from app.networks.importers.diffusers import lower, read
from app.networks.run import Run, is_diffusion
from app.networks.training_pass import training
from app.ops import kinds_of, work_of
from app.stacks.release import release_of
from app.tables.workload import Workload
from tests.unit.transformers import config

# Parameters in billions as published: of the papers and model cards, with the table of positions of SD 3.5.
PUBLISHED = {
    "flux.1-dev": 11.9,
    "stable-diffusion-3.5-large": 8.1,
    "stable-diffusion-3.5-medium": 2.5,
    "pixart-sigma-xl": 0.61,
    "hunyuandit-v1.2": 1.5,
    "sana1.5-1.6b": 1.6,
    "sana1.5-4.8b": 4.8,
    "wan2.1-t2v-1.3b": 1.42,
    "wan2.1-t2v-14b": 14.3,
    "cogvideox-2b": 1.69,
    "cogvideox1.5-5b": 5.57,
    "hunyuanvideo": 12.8,
    "stable-diffusion-1.5": 0.8595,
    "stable-diffusion-xl": 2.567,
}
UNETS = ("stable-diffusion-1.5", "stable-diffusion-xl")
VIDEOS = {name for name in PUBLISHED if name.startswith(("wan", "cog", "hunyuanvideo"))}
RUN = Run(batch=2, sequence=512, image_size=512, image_width=768, dtype="bf16", attention="flash")


def _rows(name: str, run: Run = RUN, **changed: Any) -> Workload:
    return lower(config(name, **changed), replace(run, frames=17 if name in VIDEOS else 1))


def _flops(rows: Workload) -> float:
    kinds = kinds_of(rows.ops)
    return float((work_of(rows.ops, kinds).flops * rows.runs).sum())


def _bytes(rows: Workload) -> float:
    kinds = kinds_of(rows.ops)
    return float((work_of(rows.ops, kinds).bytes * rows.runs).sum())


def test_every_built_in_one_is_checked() -> None:
    assert {name for name in names() if is_diffusion(find_config(name))} == PUBLISHED.keys()


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_published(name: str) -> None:
    rows = _rows(name)
    found = (rows.parameters * rows.repeats[rows.block]).sum()
    assert found == pytest.approx(PUBLISHED[name] * 1e9, rel=0.02)


@pytest.mark.parametrize(
    ("name", "size", "tokens"),
    [
        ("flux.1-dev", (1024, 1024, 1), 64 * 64),
        ("sana1.5-1.6b", (1024, 1024, 1), 32 * 32),
        ("wan2.1-t2v-14b", (480, 832, 81), 21 * 30 * 52),
        ("cogvideox-2b", (480, 720, 49), 13 * 30 * 45),
        ("cogvideox1.5-5b", (768, 1360, 81), 11 * 48 * 85),  # 21 latent frames, padded to pairs
        ("hunyuanvideo", (720, 1280, 129), 33 * 45 * 80),
    ],
)
def test_tokens_of_images_and_videos(name: str, size: tuple[int, int, int], tokens: int) -> None:
    run = replace(RUN, image_size=size[0], image_width=size[1], frames=size[2])
    assert tokens_of(read(config(name)), run).image == tokens


def test_flux_computes_its_blocks_on_image_and_text_tokens() -> None:
    """Products and attention by hand, with 12 width^2 weights per token in either kind of block."""
    rows = lower(config("flux.1-dev"), replace(RUN, batch=1, image_size=1024, image_width=1024))
    width, tokens = 3072, 4096 + 512
    products = 57 * 2.0 * 12 * width**2 * tokens
    attention = 57 * 4.0 * tokens**2 * width
    assert _flops(rows) == pytest.approx(products + attention, rel=0.02)


@pytest.mark.parametrize("name", sorted(PUBLISHED.keys() - {*UNETS}))
def test_pytorch_launches_more_kernels_for_the_same_work(name: str) -> None:
    eager, served = _rows(name), _rows(name, replace(RUN, release=release_of("vllm")))
    assert len(eager) > 1.2 * len(served)
    assert _flops(eager) == pytest.approx(_flops(served), rel=0.06)
    assert _bytes(eager) > 1.1 * _bytes(served)
    assert not any("cast" in name for name in _rows(name, replace(RUN, dtype="fp32")).names)


@pytest.mark.parametrize("name", PUBLISHED)
def test_work_grows_with_samples_and_training_has_a_backward(name: str) -> None:
    forward = _rows(name)
    assert _flops(_rows(name, replace(RUN, batch=4))) == pytest.approx(2.0 * _flops(forward), rel=0.01)
    trained = training(forward, replace(RUN, mode="training"))
    assert _flops(trained) > 2.5 * _flops(forward)


def test_attention_to_the_text_has_its_keys_only() -> None:
    rows = _rows("pixart-sigma-xl")
    k = rows.names.index("cross.attention")
    image = (512 // 16) * (768 // 16)
    assert rows.ops.column("query_length")[k] == image
    assert rows.ops.column("window")[k] == 512
    assert work_of(rows.ops, kinds_of(rows.ops)).flops[k] == pytest.approx(4.0 * 2 * image * 512 * 1152, rel=0.1)


def test_the_last_text_stream_of_sd3_ends_and_its_first_blocks_attend_twice() -> None:
    rows = _rows("stable-diffusion-3.5-medium")
    repeats = rows.repeats[rows.block]
    again = [k for k, name in enumerate(rows.names) if name == "attention.again"]
    assert repeats[again].sum() == 13
    text = [k for k, name in enumerate(rows.names) if name == "text.mlp.up"]
    assert repeats[text].sum() == 23


def test_linear_attention_is_linear_in_the_tokens() -> None:
    small, large = (_rows("sana1.5-1.6b", replace(RUN, image_size=side, image_width=side)) for side in (1024, 2048))
    for name in ("attention.state", "attention.read"):
        ratio = [work_of(rows.ops, kinds_of(rows.ops)).flops[rows.names.index(name)] for rows in (small, large)]
        assert ratio[1] == pytest.approx(4.0 * ratio[0])


@pytest.mark.parametrize(
    ("name", "changed", "field"),
    [
        ("flux.1-dev", {"num_layers": 0}, "num_layers"),
        ("flux.1-dev", {"num_attention_heads": "many"}, "num_attention_heads"),
        ("flux.1-dev", {"_class_name": "UNet3DConditionModel"}, "_class_name"),
        ("stable-diffusion-xl", {"block_out_channels": [320, 640]}, "down_block_types"),
        ("stable-diffusion-xl", {"block_out_channels": 320}, "block_out_channels"),
        ("stable-diffusion-xl", {"attention_head_dim": [5, 10, 0]}, "attention_head_dim"),
        ("stable-diffusion-xl", {"up_block_types": ["UpBlock2D", "AttnUpBlock2D", "UpBlock2D"]}, "up_block_types"),
        ("stable-diffusion-xl", {"mid_block_type": None, "layers_per_block": "two"}, "layers_per_block"),
        ("flux.1-dev", {"_class_name": 7}, "_class_name"),
        ("stable-diffusion-3.5-medium", {"dual_attention_layers": [24]}, "dual_attention_layers"),
        ("stable-diffusion-3.5-medium", {"qk_norm": "batch_norm"}, "qk_norm"),
        ("hunyuandit-v1.2", {"mlp_ratio": -1.0}, "mlp_ratio"),
        ("hunyuandit-v1.2", {"use_style_cond_and_image_meta_size": True}, "use_style_cond_and_image_meta_size"),
        ("wan2.1-t2v-14b", {"patch_size": [1, 2]}, "patch_size"),
        ("wan2.1-t2v-14b", {"patch_size": [1, 2, 3]}, "patch_size"),
        ("wan2.1-t2v-14b", {"patch_size": [0, 2, 2]}, "patch_size"),
        ("wan2.1-t2v-14b", {"image_dim": 1280}, "image_dim"),
        ("cogvideox-2b", {"patch_bias": "yes"}, "patch_bias"),
    ],
)
def test_invalid_fields_are_named(name: str, changed: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInput) as refused:
        _rows(name, **changed)
    assert refused.value.errors[0].loc[-1] == field


@pytest.mark.parametrize(
    ("name", "run", "field"),
    [
        ("flux.1-dev", replace(RUN, image_size=1000), "image_size"),
        ("sana1.5-1.6b", replace(RUN, image_width=784), "image_width"),
        ("flux.1-dev", replace(RUN, frames=5), "frames"),
        ("wan2.1-t2v-14b", replace(RUN, frames=80), "frames"),
        ("stable-diffusion-1.5", replace(RUN, image_size=520), "image_size"),
        ("stable-diffusion-xl", replace(RUN, frames=5), "frames"),
    ],
)
def test_sizes_that_are_no_whole_tokens_are_refused(name: str, run: Run, field: str) -> None:
    with pytest.raises(BadInput) as refused:
        lower(config(name), run)
    assert refused.value.errors[0].loc == ("workload", field)


def test_small_networks_of_every_family_lower() -> None:
    for name in PUBLISHED.keys() - {*UNETS}:
        changed: dict[str, Any] = {"num_layers": 1, "num_attention_heads": 2, "attention_head_dim": 8}
        given = {"num_single_layers", "num_refiner_layers"} & config(name).keys()
        dual = {"dual_attention_layers": []} if "dual_attention_layers" in config(name) else {}
        rows = _rows(name, **changed, **dict.fromkeys(given, 1), **dual)
        assert np.isfinite(rows.parameters).all() and rows.parameters.sum() > 0


# Parameters in millions of what runs beside the denoiser: T5-XXL with CLIP-L; with OpenCLIP bigG too; mT5-XL with a
# bilingual CLIP; Gemma 2 2B; and the decoders of Stable Diffusion's autoencoder and of DC-AE, as published.
@pytest.mark.parametrize(
    ("name", "part", "millions"),
    [
        ("flux.1-dev", "text_encoders", 4_762 + 123),
        ("stable-diffusion-3.5-large", "text_encoders", 4_762 + 123 + 695),
        ("hunyuandit-v1.2", "text_encoders", 1_670 + 350),
        ("sana1.5-1.6b", "text_encoders", 2_614),
        ("stable-diffusion-1.5", "text_encoders", 123),
        ("stable-diffusion-xl", "text_encoders", 123 + 695),
        ("stable-diffusion-1.5", "autoencoder", 49.5),
        ("flux.1-dev", "autoencoder", 49.5),
        ("pixart-sigma-xl", "autoencoder", 49.5),
        ("sana1.5-1.6b", "autoencoder", 159),
    ],
)
def test_parameters_beside_the_denoiser_are_those_published(
    name: str, part: Literal["text_encoders", "autoencoder"], millions: float
) -> None:
    rows = _rows(name, replace(RUN, part=part))
    assert (rows.parameters * rows.repeats[rows.block]).sum() == pytest.approx(millions * 1e6, rel=0.02)


def test_an_image_of_twice_the_side_is_decoded_in_four_times_the_work() -> None:
    small = replace(RUN, part="autoencoder", image_size=512, image_width=512)
    large = replace(small, image_size=1024, image_width=1024)
    for name in ("flux.1-dev", "sana1.5-1.6b"):
        assert _flops(_rows(name, large)) == pytest.approx(4.0 * _flops(_rows(name, small)), rel=0.06)


def test_text_encoders_do_not_depend_on_the_image() -> None:
    encoders = replace(RUN, part="text_encoders")
    assert _flops(_rows("flux.1-dev", encoders)) == _flops(_rows("flux.1-dev", replace(encoders, image_size=1024)))


@pytest.mark.parametrize("name", sorted(VIDEOS))
def test_decoders_of_videos_are_refused(name: str) -> None:
    with pytest.raises(BadInput, match="autoencoder of videos"):
        _rows(name, replace(RUN, part="autoencoder"))


# 10^9 operations of one sample, at the images that it was trained on, as published; of SDXL without attention scores.
@pytest.mark.parametrize(
    ("name", "side", "gflop"), [("stable-diffusion-1.5", 512, 803), ("stable-diffusion-xl", 1024, 5980)]
)
def test_unets_compute_what_is_published(name: str, side: int, gflop: float) -> None:
    assert read(config(name)).side == side
    rows = _rows(name, replace(RUN, batch=1, sequence=77, image_size=side, image_width=side))
    assert _flops(rows) == pytest.approx(1e9 * gflop, rel=0.15)


def test_the_way_up_reads_the_way_down() -> None:
    rows = _rows("stable-diffusion-xl")
    joined = [
        width
        for name, width in zip(rows.names, rows.ops.column("in_channels"), strict=True)
        if name == "residual.shortcut"
    ]
    assert joined == [320, 640, 2560, 2560, 1920, 1920, 1280, 960, 960, 640, 640]
