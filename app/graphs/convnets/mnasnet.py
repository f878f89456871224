"""MnasNet-B1 (Tan et al. 2019)."""

from __future__ import annotations

from functools import partial

from app.graphs.convnets.mobilenet import Layer, inverted_residual
from app.graphs.convnets.net import Constructor, Net, divisible

# Channels, window, stride, expansion and depth of each stage.
_STAGES = ((24, 3, 2, 3, 3), (40, 5, 2, 3, 3), (80, 5, 2, 6, 3), (96, 3, 1, 6, 2), (192, 5, 2, 6, 4), (320, 3, 1, 6, 1))


def mnasnet(net: Net, width: float) -> None:
    """Widths are `width` times those of the paper."""
    net.begin("Stem")
    first = divisible(32 * width)
    x = net.conv_norm(net.conv_norm(net.image, first, 3, 2), first, 3, groups=first)
    x = net.conv_norm(x, divisible(16 * width), 1, act=None)
    for base, kernel, stride, expansion, depth in _STAGES:
        channels = divisible(base * width)
        net.begin("InvertedResidual")
        x = inverted_residual(net, x, Layer(kernel, expansion * x.channels, channels, stride, "relu"))
        if depth > 1:
            net.begin("InvertedResidual", depth - 1)
            x = inverted_residual(net, x, Layer(kernel, expansion * channels, channels, 1, "relu"))
    net.begin("Head")
    net.linear(net.drop(net.mean(net.conv_norm(x, 1280, 1))), net.classes)


NETWORKS: dict[str, Constructor] = {
    "mnasnet0_5": partial(mnasnet, width=0.5),
    "mnasnet0_75": partial(mnasnet, width=0.75),
    "mnasnet1_0": partial(mnasnet, width=1.0),
    "mnasnet1_3": partial(mnasnet, width=1.3),
}
