"""Layout of images as torch.compile chooses it."""

from __future__ import annotations

import pytest

from app.networks.convnets import lower
from app.networks.convolutions import in_memory_format
from app.networks.run import Run
from app.ops import OP_CODE


def is_last(name: str, run: Run) -> bool:
    ops = in_memory_format(lower(name, run), run).ops
    (found,) = set(ops.column("channels_last")[ops.kind == OP_CODE["conv2d"]].tolist())
    return bool(found)


@pytest.mark.parametrize(
    ("name", "inference", "training"),
    [
        ("resnet50", True, True),
        ("mobilenet_v2", True, True),  # depthwise convolutions are like any other
        ("densenet121", True, False),  # windows from 128 channels to 32
        ("resnext50_32x4d", True, False),  # groups with a small part of the FLOPs
        ("regnet_x_16gf", False, False),  # and with more than a third
    ],
)
def test_compiled_networks_are_converted_where_it_pays(name: str, inference: bool, training: bool) -> None:
    """By the rules of torch._inductor's `decide_layout_opt`."""
    assert is_last(name, Run(mode="inference", fused=True)) == inference
    assert is_last(name, Run(mode="training", fused=True)) == training
    assert not is_last(name, Run(mode="inference"))
