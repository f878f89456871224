"""JSON graph nodes of framework layers, shared by the ONNX and ATen importers, and names of operators beyond app.ops.

Views cost nothing. Element-wise operators are memory-bound (NeuSight, PM2Lat), so an unmeasured one is predicted as a
measured one that reads and writes the same tensors with about as many operations per element.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from app.config import SEED_DATA

_TABLES: Mapping[str, Any] = json.loads((SEED_DATA / "graph_operators.json").read_text("utf-8"))


def table(name: str) -> Any:
    """Return a table of names of operators (seed_data/graph_operators.json)."""
    return _TABLES[name]["names"]


def by_name(name: str) -> dict[str, str]:
    """Return the operator of the graph form that each name of a table means."""
    return {other: op for op, others in table(name).items() for other in others}


RESHAPES = frozenset(table("reshapes"))
VIEWS = RESHAPES | frozenset(table("views"))
STANDS_FOR: Mapping[str, str] = by_name("stands_for")

Shape = tuple[int, ...]


class Step(NamedTuple):
    """One node of the JSON graph; `inputs` are positions among the layer's inputs, None is the previous step."""

    op: str
    shape: Shape
    attributes: Mapping[str, Any] = {}
    inputs: Sequence[int | None] = (0,)
    repeats: int = 1


class Window(NamedTuple):
    """A window's sizes, strides and dilations."""

    kernel: Sequence[int]
    stride: Sequence[int]
    dilation: Sequence[int]


def convolution(x: Shape, weight: Shape, out: Shape, window: Window, groups: int) -> list[Step]:
    """Return the nodes of a convolution of images `x` with weights [out channels, in channels / groups, sides ...]."""
    if len(x) > 4:
        # Three or more dimensions: an explicit im2col matrix product (app.ops.conv).
        m, n, k = out[0] * prod(out[2:]), weight[0] // groups, prod(weight[1:])
        product = Step("bmm", (groups, m, n), {"b": groups, "m": m, "n": n, "k": k}, (None,))
        return [Step("expand", (groups, m, k)), product, Step("reshape", out, {}, (None,))]
    return [Step("conv2d", out, window_fields(x, out, window) | {"groups": groups, "out_channels": weight[0]})]


def transposed_convolution(x: Shape, weight: Shape, out: Shape, groups: int) -> list[Step]:
    """Return a matrix product and a col2im sum (cuDNN's data gradient fuses both)."""
    m, n, k = x[0] * prod(x[2:]), prod(weight[1:]), x[1] // groups
    product = Step("bmm", (groups, m, n), {"b": groups, "m": m, "n": n, "k": k})
    return [product, Step("scatter", out, {}, (None,))]


def window_fields(x: Shape, out: Shape, window: Window) -> dict[str, Any]:
    """Return a window's fields, with the padding that follows from the output size."""
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
    """Return the nodes of a pooling; with three or more dimensions it is memory-bound."""
    if len(x) > 4:
        return [Step("resize", out)]
    return [Step(op, out, window_fields(x, out, window))]


def product(a: Shape, b: Shape, out: Shape, *, weights: bool) -> list[Step]:
    """Return the nodes of a product of `a` and `b` in the last two dimensions; with `weights`, `b` is a parameter."""
    k, n = a[-1], b[-1] if len(b) > 1 else 1
    if weights and prod(b[:-2]) == 1:
        return [Step("linear", out, {"m": max(prod(out) // n, 1), "n": n, "k": k})]
    m = a[-2] if len(a) > 1 else 1
    return [Step("bmm", out, {"b": max(prod(out) // (m * n), 1), "m": m, "n": n, "k": k}, (0, 1))]
