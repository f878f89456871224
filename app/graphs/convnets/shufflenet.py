"""ShuffleNetV2 (Ma et al. 2018)."""

from __future__ import annotations

from functools import partial

from app.graphs.convnets.net import Constructor, Net, Tensor

_DEPTHS = (4, 8, 4)


def shufflenet_v2(net: Net, channels: tuple[int, int, int], last: int) -> None:
    """Add three stages; `last` is the width of the last convolution."""
    net.begin("Stem")
    x = net.max_pool(net.conv_norm(net.image, 24, 3, 2), 3, 2, padding=1)
    for width, depth in zip(channels, _DEPTHS, strict=True):
        net.begin("InvertedResidual")
        x = _shuffle(net, _alone(net, x, width // 2, 2), _branch(net, x, width // 2, 2))
        net.begin("InvertedResidual", depth - 1)
        # Half of the channels pass unchanged; the other half is a strided view, which is copied.
        half = x._replace(channels=width // 2)
        x = _shuffle(net, half, _branch(net, net.concat([half], "half"), width // 2, 1))
    net.begin("Head")
    net.linear(net.mean(net.conv_norm(x, last, 1)), net.classes)


def _branch(net: Net, x: Tensor, channels: int, stride: int) -> Tensor:
    return _alone(net, net.conv_norm(x, channels, 1), channels, stride)


def _alone(net: Net, x: Tensor, channels: int, stride: int) -> Tensor:
    x = net.conv_norm(x, x.channels, 3, stride, groups=x.channels, act=None)
    return net.conv_norm(x, channels, 1)


def _shuffle(net: Net, x: Tensor, y: Tensor) -> Tensor:
    """Add the concatenation of both, and the copy that interleaves their channels."""
    return net.concat([net.concat([x, y])], "shuffle")


NETWORKS: dict[str, Constructor] = {
    "shufflenet_v2_x0_5": partial(shufflenet_v2, channels=(48, 96, 192), last=1024),
    "shufflenet_v2_x1_0": partial(shufflenet_v2, channels=(116, 232, 464), last=1024),
    "shufflenet_v2_x1_5": partial(shufflenet_v2, channels=(176, 352, 704), last=1024),
    "shufflenet_v2_x2_0": partial(shufflenet_v2, channels=(244, 488, 976), last=2048),
}
