"""EfficientNet (Tan and Le 2019) and EfficientNetV2 (2021)."""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

from app.graphs.convnets.net import Constructor, Net, Tensor, divisible


class Stage(NamedTuple):
    """`depth` blocks, the first with the stride; `fused` replaces expansion and depthwise convolution by one."""

    expansion: int
    kernel: int
    stride: int
    channels: int
    depth: int
    fused: bool = False


def efficientnet(net: Net, stem: int, stages: tuple[Stage, ...], last: int) -> None:
    """Add an EfficientNet; `stem` and `last` are the channels of the first and the last convolution."""
    net.begin("Stem")
    x = net.conv_norm(net.image, stem, 3, 2, act="silu")
    for stage in stages:
        kind = "FusedMBConv" if stage.fused else "MBConv"
        net.begin(kind)
        x = _block(net, x, stage, stage.stride)
        if stage.depth > 1:
            net.begin(kind, stage.depth - 1)
            x = _block(net, x, stage, 1)
    net.begin("Head")
    x = net.mean(net.conv_norm(x, last, 1, act="silu"))
    net.linear(net.drop(x), net.classes)


def _block(net: Net, x: Tensor, stage: Stage, stride: int) -> Tensor:
    y = (_fused if stage.fused else _mb_conv)(net, x, stage, stride)
    return net.add(net.drop(y), x) if stride == 1 and x.channels == stage.channels else y


def _mb_conv(net: Net, x: Tensor, stage: Stage, stride: int) -> Tensor:
    expanded = divisible(x.channels * stage.expansion)
    y = x if expanded == x.channels else net.conv_norm(x, expanded, 1, act="silu")
    y = net.conv_norm(y, expanded, stage.kernel, stride, groups=expanded, act="silu")
    y = net.excite(y, max(1, x.channels // 4), act="silu")
    return net.conv_norm(y, stage.channels, 1, act=None)


def _fused(net: Net, x: Tensor, stage: Stage, stride: int) -> Tensor:
    expanded = divisible(x.channels * stage.expansion)
    if expanded == x.channels:
        return net.conv_norm(x, stage.channels, stage.kernel, stride, act="silu")
    y = net.conv_norm(x, expanded, stage.kernel, stride, act="silu")
    return net.conv_norm(y, stage.channels, 1, act=None)


_B0 = (
    Stage(1, 3, 1, 16, 1),
    Stage(6, 3, 2, 24, 2),
    Stage(6, 5, 2, 40, 2),
    Stage(6, 3, 2, 80, 3),
    Stage(6, 5, 1, 112, 3),
    Stage(6, 5, 2, 192, 4),
    Stage(6, 3, 1, 320, 1),
)
# Width and depth factors relative to B0.
_SCALES = ((1.0, 1.0), (1.0, 1.1), (1.1, 1.2), (1.2, 1.4), (1.4, 1.8), (1.6, 2.2), (1.8, 2.6), (2.0, 3.1))


def _compound(width: float, depth: float) -> Constructor:
    stages = tuple(
        stage._replace(channels=divisible(stage.channels * width), depth=math.ceil(stage.depth * depth))
        for stage in _B0
    )
    return partial(efficientnet, stem=divisible(32 * width), stages=stages, last=4 * stages[-1].channels)


_V2_S = (
    Stage(1, 3, 1, 24, 2, fused=True),
    Stage(4, 3, 2, 48, 4, fused=True),
    Stage(4, 3, 2, 64, 4, fused=True),
    Stage(4, 3, 2, 128, 6),
    Stage(6, 3, 1, 160, 9),
    Stage(6, 3, 2, 256, 15),
)
_V2_M = (
    Stage(1, 3, 1, 24, 3, fused=True),
    Stage(4, 3, 2, 48, 5, fused=True),
    Stage(4, 3, 2, 80, 5, fused=True),
    Stage(4, 3, 2, 160, 7),
    Stage(6, 3, 1, 176, 14),
    Stage(6, 3, 2, 304, 18),
    Stage(6, 3, 1, 512, 5),
)
_V2_L = (
    Stage(1, 3, 1, 32, 4, fused=True),
    Stage(4, 3, 2, 64, 7, fused=True),
    Stage(4, 3, 2, 96, 7, fused=True),
    Stage(4, 3, 2, 192, 10),
    Stage(6, 3, 1, 224, 19),
    Stage(6, 3, 2, 384, 25),
    Stage(6, 3, 1, 640, 7),
)

NETWORKS: dict[str, Constructor] = {
    **{f"efficientnet_b{k}": _compound(*scales) for k, scales in enumerate(_SCALES)},
    "efficientnet_v2_s": partial(efficientnet, stem=24, stages=_V2_S, last=1280),
    "efficientnet_v2_m": partial(efficientnet, stem=24, stages=_V2_M, last=1280),
    "efficientnet_v2_l": partial(efficientnet, stem=32, stages=_V2_L, last=1280),
}
