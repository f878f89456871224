"""SqueezeNet (Iandola et al. 2016), 1.0 and 1.1."""

from __future__ import annotations

from functools import partial

from app.graphs.convnets.net import Constructor, Net, Tensor


def squeezenet(net: Net, stem: tuple[int, int], modules: tuple[tuple[tuple[int, int], ...], ...]) -> None:
    """Add a stem of (channels, window), and fire modules of (squeezed, expanded) channels after each pooling."""
    net.begin("Stem")
    channels, kernel = stem
    x = net.act(net.conv(net.image, channels, kernel, 2, padding=0, bias=True))
    for group in modules:
        net.begin("Pool")
        x = net.max_pool(x, ceil=True)
        for squeezed, expanded in group:
            net.begin("Fire")
            x = _fire(net, x, squeezed, expanded)
    net.begin("Head")
    net.mean(net.act(net.conv(net.drop(x), net.classes, 1, bias=True)))


def _fire(net: Net, x: Tensor, squeezed: int, expanded: int) -> Tensor:
    x = net.act(net.conv(x, squeezed, 1, bias=True))
    return net.concat([net.act(net.conv(x, expanded, kernel, bias=True)) for kernel in (1, 3)])


_1_0 = (((16, 64), (16, 64), (32, 128)), ((32, 128), (48, 192), (48, 192), (64, 256)), ((64, 256),))
_1_1 = (((16, 64), (16, 64)), ((32, 128), (32, 128)), ((48, 192), (48, 192), (64, 256), (64, 256)))

NETWORKS: dict[str, Constructor] = {
    "squeezenet1_0": partial(squeezenet, stem=(96, 7), modules=_1_0),
    "squeezenet1_1": partial(squeezenet, stem=(64, 3), modules=_1_1),
}
