"""Products and activations of ConvNets against those published by timm with its step times."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from app.config import CHECKOUT
from app.networks.convmeter_figures import figures
from app.networks.convnets import lower
from app.networks.run import Run
from app.ops import OP_CODE

DATA = Path(os.environ.get("GPUCAST_SHARED_DATA", CHECKOUT.parent / "shared" / "data"))
FILE = DATA / "vision_models" / "vision_models.parquet"
# timm's name -> ours, where both define the same network.
SAME = {
    **{name: name for name in ("densenet121", "densenet161", "densenet169", "densenet201", "inception_v3")},
    **{f"vgg{depth}{norm}": f"vgg{depth}{norm}" for depth in (11, 13, 16, 19) for norm in ("", "_bn")},
    **{f"resnet{depth}": f"resnet{depth}" for depth in (18, 34, 50, 101, 152)},
    **{name: name for name in ("resnext50_32x4d", "resnext101_32x8d", "resnext101_64x4d")},
    **{name: name for name in ("wide_resnet50_2", "wide_resnet101_2")},
    **{f"efficientnet_b{k}": f"efficientnet_b{k}" for k in range(8)},
    **{f"efficientnetv2_{size}": f"efficientnet_v2_{size}" for size in "sml"},
    "mnasnet_050": "mnasnet0_5",
    "mnasnet_075": "mnasnet0_75",
    "mnasnet_100": "mnasnet1_0",
    "mobilenetv2_100": "mobilenet_v2",
    "mobilenetv3_large_100": "mobilenet_v3_large",
    "mobilenetv3_small_100": "mobilenet_v3_small",
    "regnetx_004_tv": "regnet_x_400mf",
    "regnetx_008": "regnet_x_800mf",
    "regnetx_016": "regnet_x_1_6gf",
    "regnetx_032": "regnet_x_3_2gf",
    "regnetx_080": "regnet_x_8gf",
    "regnetx_160": "regnet_x_16gf",
    "regnetx_320": "regnet_x_32gf",
    "regnety_004": "regnet_y_400mf",
    "regnety_008_tv": "regnet_y_800mf",
    "regnety_016": "regnet_y_1_6gf",
    "regnety_032": "regnet_y_3_2gf",
    "regnety_080_tv": "regnet_y_8gf",
    "regnety_160": "regnet_y_16gf",
    "regnety_320": "regnet_y_32gf",
    "regnety_1280": "regnet_y_128gf",
}


def _rows(*columns: str) -> list[tuple[Any, ...]]:
    """These columns of the networks of SAME, a row once."""
    if not FILE.is_file():
        pytest.skip(f"no data in {FILE}")
    table = pq.read_table(FILE, columns=["model", *columns])
    return sorted(
        {tuple(row.values()) for row in table.to_pylist() if row["model"] in SAME and None not in row.values()}
    )


# Batches that timm tries, from the largest down, until one fits.
BATCHES = (8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


def _training_gib(name: str, batch: int, side: int) -> float:
    """What a training step holds under autocast: activations in FP16; weights, gradients and two moments in FP32."""
    w = lower(SAME[name], Run(mode="training", batch=batch, image_size=side, dtype="fp16"))
    return float(w.saved_bytes @ w.repeats[w.block] + 16 * w.parameters @ w.runs) / 2**30


def test_batches_that_fitted_into_24_gib_are_predicted_to_fit() -> None:
    tried = 0
    for name, *where, batch, side in _rows("phase", "device", "precision", "layout", "batch", "img_size"):
        # Channels last needs more room for some networks.
        if where != ["train", "rtx3090", "amp", "nchw"]:
            continue
        tried += 1
        assert _training_gib(name, int(batch), side) < 22.0, name
        if batch < BATCHES[-1]:
            assert _training_gib(name, BATCHES[BATCHES.index(batch) + 1], side) > 19.0, name
    assert tried > 50


def test_products_and_activations_equal_those_of_timm() -> None:
    """Rounded to two digits there; its counter takes a normalisation's element for two multiply-adds."""
    rows = _rows("img_size", "params_m", "gmacs", "macts", "counts_filled")
    assert {row[0] for row in rows} == set(SAME)
    for name, side, parameters, gmacs, macts, filled in rows:
        if filled:  # copied or scaled from another run
            continue
        w = lower(SAME[name], Run(image_size=side))
        found = figures(w)
        normed = np.where(w.ops.kind == OP_CODE["batch_norm"], w.runs * w.output_bytes / 4.0, 0.0).sum()
        where = f"{name} at {side}"
        assert found.weights / 1e6 == pytest.approx(parameters, abs=0.0051), where
        assert (found.flops / 2 + 2 * normed) / 1e9 == pytest.approx(gmacs, rel=0.003, abs=0.0051), where
        assert found.outputs / 1e6 == pytest.approx(macts, rel=0.003, abs=0.0051), where
