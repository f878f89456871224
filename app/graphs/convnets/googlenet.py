"""GoogLeNet (Szegedy et al. 2015), with batch normalisation and 3x3 windows where the paper has 5x5 (torchvision)."""

from __future__ import annotations

from typing import NamedTuple

from app.graphs.convnets.net import Constructor, Net, Tensor


class Module(NamedTuple):
    """Channels of an Inception module's branches: 1x1, two of 3x3 with their reductions before, and after pooling."""

    one: int
    reduced: int
    three: int
    reduced_again: int
    three_again: int
    pooled: int


_3 = (Module(64, 96, 128, 16, 32, 32), Module(128, 128, 192, 32, 96, 64))
_4 = (
    Module(192, 96, 208, 16, 48, 64),
    Module(160, 112, 224, 24, 64, 64),
    Module(128, 128, 256, 24, 64, 64),
    Module(112, 144, 288, 32, 64, 64),
    Module(256, 160, 320, 32, 128, 128),
)
_5 = (Module(256, 160, 320, 32, 128, 128), Module(384, 192, 384, 48, 128, 128))
_AUXILIARY_AFTER = (2, 5)  # modules


def googlenet(net: Net) -> None:
    """Add GoogLeNet, in training with its two auxiliary classifiers, placed last."""
    net.begin("Stem")
    x = net.max_pool(net.conv_norm(net.image, 64, 7, 2), ceil=True)
    x = net.max_pool(net.conv_norm(net.conv_norm(x, 64, 1), 192, 3), ceil=True)
    outputs = []
    for modules, pool in ((_3, 3), (_4, 2), (_5, None)):
        for module in modules:
            net.begin("Inception")
            x = _inception(net, x, module)
            outputs.append(x)
        if pool:
            net.begin("Pool")
            x = net.max_pool(x, pool, ceil=True)
    net.begin("Head")
    net.linear(net.drop(net.mean(x)), net.classes)
    if net.training:
        for k in _AUXILIARY_AFTER:
            net.begin("Auxiliary")
            y = net.linear(net.conv_norm(net.mean(outputs[k], 4), 128, 1), 1024)
            net.linear(net.drop(net.act(y)), net.classes)


def _inception(net: Net, x: Tensor, module: Module) -> Tensor:
    one = net.conv_norm(x, module.one, 1)
    three = net.conv_norm(net.conv_norm(x, module.reduced, 1), module.three)
    again = net.conv_norm(net.conv_norm(x, module.reduced_again, 1), module.three_again)
    pooled = net.conv_norm(net.max_pool(x, 3, 1, padding=1, ceil=True), module.pooled, 1)
    return net.concat([one, three, again, pooled])


NETWORKS: dict[str, Constructor] = {"googlenet": googlenet}
