"""ConvNets in PyTorch, built from their tables (seed_data/convnets.json): the same networks are predicted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from app.networks.convnets import build
from app.networks.convnets.layers import Layer, Net


@dataclass(frozen=True, slots=True)
class _Step:
    """An executable layer: tensors and channels that it reads, the tensor it writes, and tensors then unused."""

    reads: tuple[tuple[int, int], ...]
    writes: int
    done: tuple[int, ...]


class ConvNet(nn.Module):
    """Layers in execution order, on images or a block's input, [batch, channels, side, side].

    `input` is its channels and side. Returns every tensor that no layer reads: logits, and in training those of
    auxiliary classifiers, [batch, classes, 1, 1] each.
    """

    def __init__(self, runs: Sequence[Sequence[Layer]]) -> None:
        """`runs` are consecutive blocks; a block's repetition reads the output of the previous one."""
        super().__init__()
        entering = runs[0][0].inputs[0]
        self.input = entering.channels, entering.side
        # Tensor numbers: 0 is the input, then one per layer; maps each row to its last tensor.
        number: dict[int | None, int] = {entering.row: 0}
        modules: list[nn.Module] = []
        reads: list[tuple[tuple[int, int], ...]] = []
        for k, layers in enumerate(runs):
            again = k > 0 and layers is runs[k - 1]
            known = {**number, **{row: len(reads) for row in _entering(layers)}} if again else dict(number)
            for layer in layers:
                reads.append(tuple((known[x.row], x.channels) for x in layer.inputs))
                modules.append(_module(layer))
                known[layer.output.row] = number[layer.output.row] = len(reads)
        self.layers = nn.ModuleList(modules)
        last = {source: k for k, sources in enumerate(reads) for source, _ in sources}
        self._steps = [
            _Step(sources, k + 1, tuple({source for source, _ in sources if last[source] == k}))
            for k, sources in enumerate(reads)
        ]

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run the layers; tensors are released after their last reader."""
        held = {0: images}
        for step, layer in zip(self._steps, self.layers, strict=True):
            y = layer(*(_part(held[source], channels) for source, channels in step.reads))
            for source in step.done:
                del held[source]
            held[step.writes] = y
        return tuple(held.values())


def convnet(name: str, side: int, *, training: bool) -> ConvNet:
    """Return a known network, or a block of one (`resnet50/Bottleneck4`), for images of `side` pixels."""
    network, _, block = name.partition("/")
    net = Net(side, training=training)
    build(network, net)
    if block:
        return ConvNet([next(layers for layers, b in _named(net) if b == block)])
    return ConvNet([layers for layers, _ in _named(net)])


def _named(net: Net) -> list[tuple[list[Layer], str]]:
    """Return the layers and the name of every repetition of every block."""
    return [
        (layers, f"{block.kind}{block.first + i}")
        for layers, block in zip(net.layers, net.blocks, strict=True)
        for i in range(block.repeats)
    ]


def _entering(layers: Sequence[Layer]) -> set[int | None]:
    """Return the rows of other blocks that a block reads; a repeated block reads only its input."""
    own = {layer.output.row for layer in layers}
    return {x.row for layer in layers for x in layer.inputs} - own


def _part(x: torch.Tensor, channels: int) -> torch.Tensor:
    return x if x.shape[1] == channels else x[:, :channels]


class _Calls(nn.Module):
    """A layer without state."""

    def __init__(self, run: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.run = run

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.run(*inputs)


class _FullyConnected(nn.Linear):
    """All elements of each image, to one pixel of as many channels as it has features."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.flatten(1))[:, :, None, None]


_DROPPED = 0.2
# Layers by name; rectifiers work in place, as in torchvision.
_PLAIN: Mapping[str, Callable[[], nn.Module]] = {
    "relu": partial(nn.ReLU, inplace=True),
    "relu6": partial(nn.ReLU6, inplace=True),
    "silu": partial(nn.SiLU, inplace=True),
    "hardswish": partial(nn.Hardswish, inplace=True),
    "sigmoid": nn.Sigmoid,
    "hardsigmoid": nn.Hardsigmoid,
    "add": partial(_Calls, torch.add),
    "excite": partial(_Calls, torch.mul),
    "half": partial(_Calls, torch.Tensor.contiguous),
    "concat": partial(_Calls, lambda *parts: torch.cat(parts, 1)),
    "shuffle": partial(nn.ChannelShuffle, 2),
    "drop": partial(nn.Dropout2d, _DROPPED),
}


def _convolution(layer: Layer) -> nn.Conv2d:
    dims = layer.dims
    window = dims["kernel_size_height"], dims["kernel_size_width"]
    weights = dims["out_channels"] * dims["in_channels"] // dims["groups"] * window[0] * window[1]
    convolution = nn.Conv2d(
        dims["in_channels"],
        dims["out_channels"],
        window,
        dims["stride_height"],
        (dims["padding_height"], dims["padding_width"]),
        groups=dims["groups"],
        bias=layer.parameters > weights,
    )
    # PyTorch's default initialisation shrinks activations to denormals, with which CPUs are slow.
    nn.init.kaiming_uniform_(convolution.weight, nonlinearity="relu")
    return convolution


def _pooling(layer: Layer) -> nn.Module:
    dims, x, side = layer.dims, layer.inputs[0], layer.output.side
    window = dims["kernel_size_height"], dims["stride_height"], dims["padding_height"]
    if layer.op == "max_pool2d":
        return nn.MaxPool2d(*window, ceil_mode=dims["input_size_height"] > x.side)
    return nn.AdaptiveAvgPool2d(1) if side == 1 and window[0] == x.side else nn.AvgPool2d(*window)


# Layers by operator, or by name if the operator is ambiguous.
_BUILT: Mapping[str, Callable[[Layer], nn.Module]] = {
    "conv2d": _convolution,
    "batch_norm": lambda layer: nn.BatchNorm2d(layer.output.channels),
    "linear": lambda layer: _FullyConnected(layer.inputs[0].elements, layer.output.channels),
    "max_pool2d": _pooling,
    "avg_pool2d": _pooling,
    "repeat": lambda layer: nn.AdaptiveAvgPool2d(layer.output.side),
}


def _module(layer: Layer) -> nn.Module:
    """Return the PyTorch module of a layer."""
    built = _BUILT.get(layer.op) or _BUILT.get(layer.name)
    return built(layer) if built else _PLAIN[layer.name]()
