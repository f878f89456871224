"""MobileNetV2 (Sandler et al. 2018) and V3 (Howard et al. 2019)."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from app.graphs.convnets.net import Constructor, Net, Tensor, divisible


class Layer(NamedTuple):
    """An inverted residual block: window, widths, stride, activation, squeeze-and-excitation."""

    kernel: int
    expanded: int
    channels: int
    stride: int
    act: str = "relu6"
    excited: bool = False


def mobilenet_v2(net: Net) -> None:
    """Expansion, channels, blocks and stride of each stage are those of the paper's table 2."""
    net.begin("Stem")
    x = net.conv_norm(net.image, 32, 3, 2, act="relu6")
    for expansion, channels, depth, stride in (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):
        net.begin("InvertedResidual")
        x = inverted_residual(net, x, Layer(3, expansion * x.channels, channels, stride))
        if depth > 1:
            net.begin("InvertedResidual", depth - 1)
            x = inverted_residual(net, x, Layer(3, expansion * channels, channels, 1))
    net.begin("Head")
    x = net.conv_norm(x, 1280, 1, act="relu6")
    net.linear(net.drop(net.mean(x)), net.classes)


_SMALL = (
    Layer(3, 16, 16, 2, "relu", True),
    Layer(3, 72, 24, 2, "relu"),
    Layer(3, 88, 24, 1, "relu"),
    Layer(5, 96, 40, 2, "hardswish", True),
    Layer(5, 240, 40, 1, "hardswish", True),
    Layer(5, 240, 40, 1, "hardswish", True),
    Layer(5, 120, 48, 1, "hardswish", True),
    Layer(5, 144, 48, 1, "hardswish", True),
    Layer(5, 288, 96, 2, "hardswish", True),
    Layer(5, 576, 96, 1, "hardswish", True),
    Layer(5, 576, 96, 1, "hardswish", True),
)
_LARGE = (
    Layer(3, 16, 16, 1, "relu"),
    Layer(3, 64, 24, 2, "relu"),
    Layer(3, 72, 24, 1, "relu"),
    Layer(5, 72, 40, 2, "relu", True),
    Layer(5, 120, 40, 1, "relu", True),
    Layer(5, 120, 40, 1, "relu", True),
    Layer(3, 240, 80, 2, "hardswish"),
    Layer(3, 200, 80, 1, "hardswish"),
    Layer(3, 184, 80, 1, "hardswish"),
    Layer(3, 184, 80, 1, "hardswish"),
    Layer(3, 480, 112, 1, "hardswish", True),
    Layer(3, 672, 112, 1, "hardswish", True),
    Layer(5, 672, 160, 2, "hardswish", True),
    Layer(5, 960, 160, 1, "hardswish", True),
    Layer(5, 960, 160, 1, "hardswish", True),
)


def mobilenet_v3(net: Net, layers: tuple[Layer, ...], features: int) -> None:
    """Add the layers of the paper's tables 1 and 2; `features` is the width before the last layer."""
    net.begin("Stem")
    x = net.conv_norm(net.image, 16, 3, 2, act="hardswish")
    for layer in layers:
        net.begin("InvertedResidual")
        x = inverted_residual(net, x, layer)
    net.begin("Head")
    x = net.mean(net.conv_norm(x, 6 * x.channels, 1, act="hardswish"))
    net.linear(net.drop(net.act(net.linear(x, features), "hardswish")), net.classes)


def inverted_residual(net: Net, x: Tensor, layer: Layer) -> Tensor:
    """Add expansion, depthwise convolution, gate and projection, and the input if the shape is unchanged."""
    y = x
    if layer.expanded != x.channels:
        y = net.conv_norm(y, layer.expanded, 1, act=layer.act)
    y = net.conv_norm(y, layer.expanded, layer.kernel, layer.stride, groups=layer.expanded, act=layer.act)
    if layer.excited:
        y = net.excite(y, divisible(layer.expanded / 4), gate="hardsigmoid")
    y = net.conv_norm(y, layer.channels, 1, act=None)
    return net.add(x, y) if layer.stride == 1 and x.channels == layer.channels else y


NETWORKS: dict[str, Constructor] = {
    "mobilenet_v2": mobilenet_v2,
    "mobilenet_v3_small": partial(mobilenet_v3, layers=_SMALL, features=1024),
    "mobilenet_v3_large": partial(mobilenet_v3, layers=_LARGE, features=1280),
}
