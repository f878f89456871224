"""Inception v3 (Szegedy et al. 2016)."""

from __future__ import annotations

from app.graphs.convnets.net import Constructor, Net, Sides, Tensor

# Channels, window, stride and padding of the first convolutions; True if a pooling follows.
_STEM = ((32, 3, 2, 0, False), (32, 3, 1, 0, False), (64, 3, 1, 1, True), (80, 1, 1, 0, False), (192, 3, 1, 0, True))
_ROW, _COLUMN = (1, 7), (7, 1)


def inception_v3(net: Net) -> None:
    """Add Inception v3, in training with its auxiliary classifier, placed last."""
    x = _stem(net)
    for pooled in (32, 64, 64):
        net.begin("InceptionA")
        x = _a(net, x, pooled)
    net.begin("InceptionB")
    x = _b(net, x)
    for inner, repeats in ((128, 1), (160, 2), (192, 1)):
        net.begin("InceptionC", repeats)
        x = _c(net, x, inner)
    middle = x
    net.begin("InceptionD")
    x = _d(net, x)
    for _ in range(2):
        net.begin("InceptionE")
        x = _e(net, x)
    net.begin("Head")
    net.linear(net.drop(net.mean(x)), net.classes)
    if net.training:
        net.begin("Auxiliary")
        y = net.conv_norm(net.conv_norm(net.avg_pool(middle, 5, 3), 128, 1), 768, 5, padding=0)
        net.linear(net.mean(y), net.classes)


def _stem(net: Net) -> Tensor:
    x = net.image
    for channels, kernel, stride, padding, pooled in _STEM:
        net.begin("Conv2d")
        x = net.conv_norm(x, channels, kernel, stride, padding=padding)
        if pooled:
            net.begin("Pool")
            x = net.max_pool(x)
    return x


def _chain(net: Net, x: Tensor, *layers: tuple[int, Sides]) -> Tensor:
    """Add convolutions in sequence, (channels, window) each."""
    for channels, kernel in layers:
        x = net.conv_norm(x, channels, kernel)
    return x


def _pooled(net: Net, x: Tensor, channels: int) -> Tensor:
    return net.conv_norm(net.avg_pool(x, 3, 1, padding=1), channels, 1)


def _a(net: Net, x: Tensor, pooled: int) -> Tensor:
    five = _chain(net, x, (48, 1), (64, 5))
    three = _chain(net, x, (64, 1), (96, 3), (96, 3))
    return net.concat([net.conv_norm(x, 64, 1), five, three, _pooled(net, x, pooled)])


def _b(net: Net, x: Tensor) -> Tensor:
    double = _chain(net, x, (64, 1), (96, 3))
    halved = [net.conv_norm(y, channels, 3, 2, padding=0) for y, channels in ((x, 384), (double, 96))]
    return net.concat([*halved, net.max_pool(x)])


def _c(net: Net, x: Tensor, inner: int) -> Tensor:
    seven = _chain(net, x, (inner, 1), (inner, _ROW), (192, _COLUMN))
    double = _chain(net, x, (inner, 1), (inner, _COLUMN), (inner, _ROW), (inner, _COLUMN), (192, _ROW))
    return net.concat([net.conv_norm(x, 192, 1), seven, double, _pooled(net, x, 192)])


def _d(net: Net, x: Tensor) -> Tensor:
    seven = _chain(net, x, (192, 1), (192, _ROW), (192, _COLUMN))
    halved = [
        net.conv_norm(y, channels, 3, 2, padding=0) for y, channels in ((net.conv_norm(x, 192, 1), 320), (seven, 192))
    ]
    return net.concat([*halved, net.max_pool(x)])


def _e(net: Net, x: Tensor) -> Tensor:
    three = _split(net, net.conv_norm(x, 384, 1))
    double = _split(net, _chain(net, x, (448, 1), (384, 3)))
    return net.concat([net.conv_norm(x, 320, 1), three, double, _pooled(net, x, 192)])


def _split(net: Net, x: Tensor) -> Tensor:
    return net.concat([net.conv_norm(x, 384, (1, 3)), net.conv_norm(x, 384, (3, 1))])


NETWORKS: dict[str, Constructor] = {"inception_v3": inception_v3}
