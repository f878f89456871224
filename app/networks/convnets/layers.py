"""Layers of ConvNets for one image: each method adds rows and returns its output tensor.

Tables of networks (seed_data/convnets.json) call them by name. Names and defaults are torchvision's. Images are square
in every layer; a layer's output has side floor((side + 2 padding - kernel) / stride) + 1, or the ceiling for a pooling
in `ceil` mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from app.networks.build import Builder

# Side of a square window, or its height and width.
Sides = int | Sequence[int]
# Operator with which an activation is predicted: the same tensors read and written, about as many operations.
_ACTIVATIONS = {
    "relu": "relu",
    "relu6": "relu",
    "silu": "silu",
    "hardswish": "silu",
    "sigmoid": "tanh",
    "hardsigmoid": "tanh",
}


class TooSmall(Exception):
    """A layer's input is smaller than its window."""


class Tensor(NamedTuple):
    """A layer's output for one image: `channels` planes of side x side, written by `row` (None: the input image)."""

    row: int | None
    channels: int
    side: int

    @property
    def area(self) -> int:
        """Elements of a plane."""
        return self.side * self.side

    @property
    def elements(self) -> int:
        """Elements of all planes."""
        return self.channels * self.area


class Layer(NamedTuple):
    """A layer: its operator and name, what it reads and writes, its weights, and fields of the operator."""

    op: str
    name: str
    inputs: Sequence[Tensor]
    output: Tensor
    parameters: float
    dims: dict[str, Any]


class Block(NamedTuple):
    """A block that runs `repeats` times: numbers `first` to first + repeats - 1 of its kind, from 1."""

    kind: str
    first: int
    repeats: int


class Net:
    """Rows of a network for one image of `side` pixels per side, in execution order and in named blocks.

    `training` adds dropout, stochastic depth and auxiliary classifiers. `activation` is that of layers that name none.
    """

    def __init__(self, side: int, *, training: bool) -> None:
        self.image = Tensor(None, 3, side)
        self.training = training
        self.activation = "relu"
        self.blocks: list[Block] = []
        self.layers: list[list[Layer]] = []  # of each block
        self.rows = Builder("fp32")

    def begin(self, kind: str, repeats: int = 1) -> None:
        """Start a block that runs `repeats` times."""
        first = 1 + sum(block.repeats for block in self.blocks if block.kind == kind)
        self.blocks.append(Block(kind, first, repeats))
        self.layers.append([])
        self.rows.begin(repeats)

    def conv(
        self,
        x: Tensor,
        channels: int,
        kernel: Sides = 3,
        stride: int = 1,
        *,
        padding: int | None = None,
        groups: int = 1,
        bias: bool = False,
    ) -> Tensor:
        """Add a convolution; the default padding keeps the side at stride 1."""
        height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
        pads = ((height - 1) // 2, (width - 1) // 2) if padding is None else (padding, padding)
        side = _slid(x.side, height, stride, pads[0])
        return self.layer(
            "conv2d",
            f"conv {height}x{width}",
            (x,),
            (channels, side),
            weights=channels * (x.channels // groups * height * width + bias),
            in_channels=x.channels,
            out_channels=channels,
            groups=groups,
            **_window(x.side, (height, width), stride, pads),
        )

    def norm(self, x: Tensor) -> Tensor:
        """Add a batch norm, with a scale and a shift per channel."""
        parameters = 2 * x.channels
        return self.layer("batch_norm", "batch_norm", (x,), x[1:], parameters, b=x.area, h=x.channels)

    def act(self, x: Tensor, kind: str | None = None) -> Tensor:
        """Add an activation, by default that of the network; none if it is called none."""
        kind = kind or self.activation
        return x if kind == "none" else self._elementwise(_ACTIVATIONS[kind], kind, x)

    def conv_norm(self, x: Tensor, *sizes: Any, act: str | None = None, **options: Any) -> Tensor:
        """Add a convolution without bias, as `conv` does, a batch norm, and an activation."""
        return self.act(self.norm(self.conv(x, *sizes, **options)), act)

    def project(self, x: Tensor, channels: int, kernel: int = 1, stride: int = 1) -> Tensor:
        """Add a convolution and a batch norm without activation, as before a residual sum."""
        return self.conv_norm(x, channels, kernel, stride, act="none")

    def depthwise(self, x: Tensor, kernel: int = 3, stride: int = 1, *, act: str | None = None) -> Tensor:
        """Add a convolution of each channel alone, a batch norm, and an activation."""
        return self.conv_norm(x, x.channels, kernel, stride, groups=x.channels, act=act)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """Add the sum of two tensors."""
        return self._elementwise("add", "add", x, y)

    def excite(self, x: Tensor, squeezed: int, act: str | None = None, gate: str = "sigmoid") -> Tensor:
        """Add squeeze and excitation (Hu et al. 2018): each channel times a gate computed by two 1x1 convolutions."""
        gates = self.act(self.conv(self.mean(x), squeezed, 1, bias=True), act)
        gates = self.act(self.conv(gates, x.channels, 1, bias=True), gate)
        # Forward reads one gate per channel; backward reads the whole tensor for the gate's gradient.
        return self._elementwise("mul" if self.training else "mul_scalar", "excite", x, gates)

    def drop(self, x: Tensor) -> Tensor:
        """Add dropout or stochastic depth, a multiplication by a mask, in training only."""
        return self._elementwise("mul_scalar", "drop", x) if self.training else x

    def max_pool(self, x: Tensor, kernel: int = 3, stride: int = 2, *, padding: int = 0, ceil: bool = False) -> Tensor:
        """Add a max pooling; with `ceil` the last window may extend beyond the padded input."""
        size = x.side
        if ceil:
            steps = -((kernel - size - 2 * padding) // stride)
            steps -= steps * stride >= size + padding  # no window starts outside the input (PyTorch's rule)
            size = max(size, steps * stride + kernel - 2 * padding)
        return self._pool("max_pool2d", x, size, kernel, stride, padding)

    def avg_pool(self, x: Tensor, kernel: int, stride: int, *, padding: int = 0) -> Tensor:
        """Add an average pooling."""
        return self._pool("avg_pool2d", x, x.side, kernel, stride, padding)

    def mean(self, x: Tensor, side: int = 1) -> Tensor:
        """Add an adaptive average pooling to `side` x `side`; a smaller plane's elements repeat."""
        if x.side < side:
            return self.layer("copy", "repeat", (x,), (x.channels, side), b=1, h=x.channels * side * side)
        stride = x.side // side
        return self.avg_pool(x, x.side - (side - 1) * stride, stride)

    def linear(self, x: Tensor, features: int) -> Tensor:
        """Add a fully connected layer with bias, on all elements."""
        parameters = features * (x.elements + 1)
        return self.layer("linear", "linear", (x,), (features, 1), parameters, m=1, n=features, k=x.elements)

    def concat(self, parts: Sequence[Tensor], name: str = "concat") -> Tensor:
        """Add a concatenation along channels, which copies."""
        channels, side = sum(part.channels for part in parts), parts[0].side
        return self.layer("copy", name, parts, (channels, side), b=1, h=channels * side * side)

    def view(self, x: Tensor, channels: int) -> Tensor:
        """Return the first channels of a tensor, which is not copied."""
        return x._replace(channels=channels)

    def copy(self, x: Tensor, name: str = "concat") -> Tensor:
        """Add a copy: PyTorch copies even the concatenation of a single tensor, and strided views."""
        return self.concat([x], name)

    def _pool(self, op: str, x: Tensor, size: int, kernel: int, stride: int, padding: int) -> Tensor:
        side = _slid(size, kernel, stride, padding)
        window = _window(size, (kernel, kernel), stride, (padding, padding))
        return self.layer(op, op.removesuffix("2d"), (x,), (x.channels, side), channels=x.channels, **window)

    def _elementwise(self, op: str, name: str, *inputs: Tensor) -> Tensor:
        x = inputs[0]
        return self.layer(op, name, inputs, x[1:], b=x.channels, h=x.area)

    def layer(
        self,
        op: str,
        name: str,
        inputs: Sequence[Tensor],
        shape: tuple[int, int],
        weights: float = 0.0,
        **dims: float,
    ) -> Tensor:
        """Add the row of a layer and return its output of `shape` (channels, side); all layers use this."""
        channels, side = shape
        block = self.blocks[-1]
        row = self.rows.add(
            op,
            [x.row for x in inputs if x.row is not None],
            outputs=channels * side * side,
            name=f"{block.kind}{block.first}.{name}",
            parameters=weights,
            **(dims if op == "linear" else {"b": 1} | dims),
        )
        output = Tensor(row, channels, side)
        self.layers[-1].append(Layer(op, name, inputs, output, weights, dims))
        return output


def _slid(side: int, kernel: int, stride: int, padding: int) -> int:
    if side + 2 * padding < kernel:
        raise TooSmall
    return (side + 2 * padding - kernel) // stride + 1


def _window(side: int, kernel: tuple[int, int], stride: int, padding: tuple[int, int]) -> dict[str, float]:
    return {
        "kernel_size_height": kernel[0],
        "kernel_size_width": kernel[1],
        "input_size_height": side,
        "input_size_width": side,
        "stride_height": stride,
        "stride_width": stride,
        "padding_height": padding[0],
        "padding_width": padding[1],
    }
