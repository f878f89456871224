"""ConvNets by torchvision's names, as Workloads with the parameters and shapes of torchvision's models."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import cache

from app.graphs.convnets import (
    alexnet,
    densenet,
    efficientnet,
    googlenet,
    inception,
    mnasnet,
    mobilenet,
    regnet,
    resnet,
    shufflenet,
    squeezenet,
    vgg,
)
from app.graphs.convnets.net import Constructor, TooSmall
from app.graphs.convnets.walk import Walk, part, scaled, walk
from app.graphs.refusal import refuse
from app.graphs.run import Run
from app.tables.workload import Workload

_BY_FAMILY: Mapping[str, Mapping[str, Constructor]] = {
    "alexnet": alexnet.NETWORKS,
    "vgg": vgg.NETWORKS,
    "squeezenet": squeezenet.NETWORKS,
    "resnet": resnet.NETWORKS,
    "densenet": densenet.NETWORKS,
    "googlenet": googlenet.NETWORKS,
    "inception": inception.NETWORKS,
    "mobilenet": mobilenet.NETWORKS,
    "mnasnet": mnasnet.NETWORKS,
    "efficientnet": efficientnet.NETWORKS,
    "regnet": regnet.NETWORKS,
    "shufflenet": shufflenet.NETWORKS,
}
CONVNETS: Mapping[str, Constructor] = {
    name: constructor for networks in _BY_FAMILY.values() for name, constructor in networks.items()
}
# Family of each network: ResNeXt and Wide ResNet are ResNets, and all versions of a network are one family.
FAMILIES: Mapping[str, str] = {name: family for family, networks in _BY_FAMILY.items() for name in networks}
DTYPES = ("fp32", "tf32", "fp16", "bf16")
MODES = ("inference", "training")
MOST_PIXELS = 4096


def lower(name: str, run: Run) -> Workload:
    """Return the forward pass of the network `name` for `run.device_batch` images of `run.image_size` pixels per side.

    Training adds dropout, stochastic depth and auxiliary classifiers. A name such as `resnet50/Bottleneck4` stands for
    one block. Raises BadInput for an unknown name, an image too small for the network, or an unsupported run.
    """
    network, of, block = name.partition("/")
    if of:
        parts = blocks(network, run)
        if block not in parts:
            refuse(("workload", "name"), f"{network} has no block {block[:80]!r}; there are {', '.join(parts)}")
        return parts[block]
    return scaled(_walk(name, run), run.device_batch, run.dtype)


def is_convnet(name: str) -> bool:
    """Return True for the name of a ConvNet, or of a possible block of one."""
    return name.partition("/")[0] in CONVNETS


def blocks(name: str, run: Run) -> dict[str, Workload]:
    """Return each block of the network as a workload, in order: ConvMeter predicts blocks one by one (table 2).

    Blocks are named by kind and number from 1 (`Bottleneck4`); equal blocks share one workload. Raises as `lower` does.
    """
    network = _walk(name, run)
    whole = scaled(network, run.device_batch, run.dtype)
    parts: dict[str, Workload] = {}
    for k, block in enumerate(network.blocks):
        workload = part(whole, k)
        parts |= {f"{block.kind}{block.first + i}": workload for i in range(block.repeats)}
    return parts


def _walk(name: str, run: Run) -> Walk:
    _check(run)
    constructor = CONVNETS.get(name)
    if constructor is None:
        near = difflib.get_close_matches(name.lower(), CONVNETS, 3, 0.5)
        names = f"nearest: {', '.join(near)}" if near else f"there are {', '.join(CONVNETS)}"
        refuse(("workload", "name"), f"no ConvNet is called {name[:80]!r}; {names}")
    try:
        return walk(constructor, run.image_size, run.mode == "training")
    except TooSmall:
        least = _least_side(constructor, run.mode == "training")
        refuse(("workload", "image_size"), f"{name} needs images of at least {least} pixels a side")


def _check(run: Run) -> None:
    """Raise BadInput for settings that ConvNets do not support."""
    if run.parallelism.tensor > 1:
        refuse(("workload", "parallelism", "tensor"), "ConvNets are not split by tensor parallelism: must be 1")
    if run.mode not in MODES:
        refuse(("workload", "mode"), f"ConvNets run in one of {', '.join(MODES)}")
    if run.dtype not in DTYPES:
        refuse(("workload", "dtype"), f"ConvNets run in one of {', '.join(DTYPES)}")
    if not 1 <= run.image_size <= MOST_PIXELS:
        refuse(("workload", "image_size"), f"must be 1 to {MOST_PIXELS} pixels")


@cache
def _least_side(constructor: Constructor, training: bool) -> int:
    """Return the smallest image side that the network accepts, in pixels, by bisection."""
    low, high = 0, MOST_PIXELS
    while high - low > 1:
        middle = (low + high) // 2
        try:
            walk(constructor, middle, training)
        except TooSmall:
            low = middle
        else:
            high = middle
    return high
