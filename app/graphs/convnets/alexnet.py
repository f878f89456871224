"""AlexNet, as in "One weird trick for parallelizing convolutional neural networks" (Krizhevsky 2014)."""

from __future__ import annotations

from app.graphs.convnets.net import Constructor, Net


def alexnet(net: Net) -> None:
    """Five convolutions and three fully connected layers."""
    net.begin("Features")
    x = net.max_pool(net.act(net.conv(net.image, 64, 11, 4, padding=2, bias=True)))
    x = net.max_pool(net.act(net.conv(x, 192, 5, bias=True)))
    for channels in (384, 256, 256):
        x = net.act(net.conv(x, channels, bias=True))
    x = net.max_pool(x)
    net.begin("Classifier")
    x = net.drop(net.mean(x, 6))
    x = net.drop(net.act(net.linear(x, 4096)))
    net.linear(net.act(net.linear(x, 4096)), net.classes)


NETWORKS: dict[str, Constructor] = {"alexnet": alexnet}
