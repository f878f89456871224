"""Layers of a framework as nodes of the JSON graph: what the importers of ONNX and of ATen share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

Shape = tuple[int, ...]


class Step(NamedTuple):
    """One node of the JSON graph. `inputs` are places among the framework's, None is the step before."""

    op: str
    shape: Shape
    attributes: Mapping[str, Any] = {}
    inputs: Sequence[int | None] = (0,)
    repeats: int = 1


class Window(NamedTuple):
    """A window's sides, its steps, and the steps between its elements."""

    kernel: Sequence[int]
    stride: Sequence[int]
    dilation: Sequence[int]


def convolution(x: Shape, weight: Shape, out: Shape, window: Window, groups: int) -> list[Step]:
    """Of images `x` with weights [out channels, in channels / groups, sides ...]."""
    if len(x) > 4:
        # Three sides and more: the implicit matrix product of a convolution (app.ops.conv), its input spread out.
        m, n, k = out[0] * prod(out[2:]), weight[0] // groups, prod(weight[1:])
        product = Step("bmm", (groups, m, n), {"b": groups, "m": m, "n": n, "k": k}, (None,))
        return [Step("expand", (groups, m, k)), product, Step("reshape", out, {}, (None,))]
    return [Step("conv2d", out, window_fields(x, out, window) | {"groups": groups, "out_channels": weight[0]})]


def transposed_convolution(x: Shape, weight: Shape, out: Shape, groups: int) -> list[Step]:
    """A matrix product, and its columns added up into the image (cuDNN's data gradient does both at once)."""
    m, n, k = x[0] * prod(x[2:]), prod(weight[1:]), x[1] // groups
    product = Step("bmm", (groups, m, n), {"b": groups, "m": m, "n": n, "k": k})
    return [product, Step("scatter", out, {}, (None,))]


def window_fields(x: Shape, out: Shape, window: Window) -> dict[str, Any]:
    """A window's fields; the padding is what the result's size takes, on whatever side it stands."""
    pads = [
        max((positions - 1) * stride + (side - 1) * gap + 1 - size, 0)
        for positions, size, side, stride, gap in zip(out[2:], x[2:], *window, strict=True)
    ]
    one = [1] * (2 - len(pads))
    return {
        "kernel_size": [*one, *window.kernel],
        "stride": [*one, *window.stride],
        "padding": [0, 0, *[0] * (2 - len(pads)), *pads],
        "dilation": [*one, *window.dilation],
    }


def pooling(op: str, x: Shape, out: Shape, window: Window) -> list[Step]:
    """Of images; with three sides and more bound by memory."""
    if len(x) > 4:
        return [Step("resize", out)]
    return [Step(op, out, window_fields(x, out, window))]


def product(a: Shape, b: Shape, out: Shape, *, weights: bool) -> list[Step]:
    """Matrices `a` times `b` in the last two dimensions; with `weights`, `b` is no tensor of the graph."""
    k, n = a[-1], b[-1] if len(b) > 1 else 1
    if weights and prod(b[:-2]) == 1:
        return [Step("linear", out, {"m": max(prod(out) // n, 1), "n": n, "k": k})]
    m = a[-2] if len(a) > 1 else 1
    return [Step("bmm", out, {"b": max(prod(out) // (m * n), 1), "m": m, "n": n, "k": k}, (0, 1))]
