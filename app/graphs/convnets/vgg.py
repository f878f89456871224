"""VGG (Simonyan and Zisserman 2015), without and with batch normalisation."""

from __future__ import annotations

from functools import partial

from app.graphs.convnets.net import Constructor, Net

_CHANNELS = (64, 128, 256, 512, 512)
_DEPTHS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}


def vgg(net: Net, depth: int, *, norm: bool) -> None:
    """Add five stages of 3x3 convolutions, each with a pooling at its end, and three fully connected layers."""
    x = net.image
    for channels, convolutions in zip(_CHANNELS, _DEPTHS[depth], strict=True):
        net.begin("Stage")
        for _ in range(convolutions):
            x = net.conv(x, channels, bias=True)
            x = net.act(net.norm(x) if norm else x)
        x = net.max_pool(x, 2)
    net.begin("Classifier")
    x = net.mean(x, 7)
    for _ in range(2):
        x = net.drop(net.act(net.linear(x, 4096)))
    net.linear(x, net.classes)


NETWORKS: dict[str, Constructor] = {
    f"vgg{depth}{'_bn' if norm else ''}": partial(vgg, depth=depth, norm=norm)
    for depth in _DEPTHS
    for norm in (False, True)
}
