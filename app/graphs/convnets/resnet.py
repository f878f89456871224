"""ResNet (He et al. 2016), ResNeXt (Xie et al. 2017) and Wide ResNet (Zagoruyko and Komodakis 2016)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from app.graphs.convnets.net import Constructor, Net, Tensor

_PLANES = (64, 128, 256, 512)


def resnet(net: Net, depths: tuple[int, ...], *, bottleneck: bool, groups: int = 1, width: int = 64) -> None:
    """Add four stages of residual blocks; `width` is a group's width in the stage of 64 planes."""
    net.begin("Stem")
    x = net.max_pool(net.conv_norm(net.image, 64, 7, 2), 3, 2, padding=1)
    for stage, (planes, depth) in enumerate(zip(_PLANES, depths, strict=True)):
        if bottleneck:
            inner = planes * width // 64 * groups
            branch = partial(_bottleneck, net, planes=planes, inner=inner, groups=groups)
        else:
            branch = partial(_basic, net, planes=planes)
        kind = "Bottleneck" if bottleneck else "BasicBlock"
        net.begin(kind)
        x = _residual(net, x, branch, 1 if stage == 0 else 2)
        net.begin(kind, depth - 1)
        x = _residual(net, x, branch, 1)
    net.begin("Head")
    net.linear(net.mean(x), net.classes)


def _residual(net: Net, x: Tensor, branch: Callable[[Tensor, int], Tensor], stride: int) -> Tensor:
    y = branch(x, stride)
    if (y.channels, y.side) != (x.channels, x.side):
        x = net.conv_norm(x, y.channels, 1, stride, act=None)
    return net.act(net.add(y, x))


def _basic(net: Net, x: Tensor, stride: int, *, planes: int) -> Tensor:
    return net.conv_norm(net.conv_norm(x, planes, 3, stride), planes, 3, act=None)


def _bottleneck(net: Net, x: Tensor, stride: int, *, planes: int, inner: int, groups: int) -> Tensor:
    y = net.conv_norm(net.conv_norm(x, inner, 1), inner, 3, stride, groups=groups)
    return net.conv_norm(y, 4 * planes, 1, act=None)


NETWORKS: dict[str, Constructor] = {
    "resnet18": partial(resnet, depths=(2, 2, 2, 2), bottleneck=False),
    "resnet34": partial(resnet, depths=(3, 4, 6, 3), bottleneck=False),
    "resnet50": partial(resnet, depths=(3, 4, 6, 3), bottleneck=True),
    "resnet101": partial(resnet, depths=(3, 4, 23, 3), bottleneck=True),
    "resnet152": partial(resnet, depths=(3, 8, 36, 3), bottleneck=True),
    "resnext50_32x4d": partial(resnet, depths=(3, 4, 6, 3), bottleneck=True, groups=32, width=4),
    "resnext101_32x8d": partial(resnet, depths=(3, 4, 23, 3), bottleneck=True, groups=32, width=8),
    "resnext101_64x4d": partial(resnet, depths=(3, 4, 23, 3), bottleneck=True, groups=64, width=4),
    "wide_resnet50_2": partial(resnet, depths=(3, 4, 6, 3), bottleneck=True, width=128),
    "wide_resnet101_2": partial(resnet, depths=(3, 4, 23, 3), bottleneck=True, width=128),
}
