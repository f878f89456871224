"""DenseNet (Huang et al. 2017)."""

from __future__ import annotations

from functools import partial

from app.graphs.convnets.net import Constructor, Net, Tensor

_BOTTLENECK = 4  # channels of the 1x1 convolution, in growths


def densenet(net: Net, depths: tuple[int, ...], *, growth: int, stem: int) -> None:
    """Add dense blocks, whose layers read all earlier outputs, with transitions that halve channels and sides."""
    net.begin("Stem")
    x = net.max_pool(net.conv_norm(net.image, stem, 7, 2), 3, 2, padding=1)
    for k, depth in enumerate(depths):
        if k > 0:
            net.begin("Transition")
            x = net.avg_pool(net.conv(_norm_act(net, x), x.channels // 2, 1), 2, 2)
        for layer in range(depth):
            net.begin("DenseLayer")
            # PyTorch copies even the concatenation of a single tensor.
            x = _dense_layer(net, x if layer else net.concat([x]), growth)
    net.begin("Head")
    net.linear(net.mean(_norm_act(net, x)), net.classes)


def _dense_layer(net: Net, x: Tensor, growth: int) -> Tensor:
    y = net.conv(_norm_act(net, x), _BOTTLENECK * growth, 1)
    return net.concat([x, net.conv(_norm_act(net, y), growth)])


def _norm_act(net: Net, x: Tensor) -> Tensor:
    return net.act(net.norm(x))


NETWORKS: dict[str, Constructor] = {
    "densenet121": partial(densenet, depths=(6, 12, 24, 16), growth=32, stem=64),
    "densenet161": partial(densenet, depths=(6, 12, 36, 24), growth=48, stem=96),
    "densenet169": partial(densenet, depths=(6, 12, 32, 32), growth=32, stem=64),
    "densenet201": partial(densenet, depths=(6, 12, 48, 32), growth=32, stem=64),
}
