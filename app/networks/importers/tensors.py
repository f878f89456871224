"""Nodes and tensors of the JSON graph: names of its operators, nodes of framework layers, and named dimensions.

The ONNX and ATen importers share the nodes. Views cost nothing. Element-wise operators are memory-bound (NeuSight,
PM2Lat), so an unmeasured one is predicted as a measured one that reads and writes the same tensors with about as many
operations per element.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from app.config import SEED_DATA
from app.ops.base import MOST, MOST_BYTES
from app.tables.ops import ACTIVATION_DTYPES, DTYPE_BYTES, DTYPE_CODE

# Bytes per element of dtypes that no operator computes in.
INDEX_BYTES = {"int64": 8.0, "int32": 4.0, "int16": 2.0, "uint8": 1.0, "bool": 1.0}
ELEMENT_BYTES: Mapping[str, float] = INDEX_BYTES | {
    name: float(DTYPE_BYTES[DTYPE_CODE[name]]) for name in ACTIVATION_DTYPES
}
TENSOR_DTYPES = (*ACTIVATION_DTYPES, *INDEX_BYTES)
# Exporters' names of the dimensions that a request's batch and sequence bind.
BATCH_NAMES = ("batch", "batch_size", "N", "n")
SEQUENCE_NAMES = ("sequence", "sequence_length", "seq_len", "seq_length", "seq")


class Tensor(NamedTuple):
    """One tensor: its shape, elements and dtype."""

    shape: tuple[int, ...]
    elements: int
    dtype: str

    @property
    def bytes(self) -> float:
        """Size in bytes."""
        return self.elements * ELEMENT_BYTES[self.dtype]

    @property
    def last(self) -> int:
        """Innermost dimension."""
        return self.shape[-1] if self.shape else 1


def bound(shape: Sequence[int | str], dims: Mapping[str, int]) -> tuple[int, ...]:
    """Return a shape with named dimensions bound; a name may be a product such as 12*batch. Raises ValueError."""
    sizes = tuple([extent(size, dims) if isinstance(size, str) else int(size) for size in shape])
    if sizes and min(sizes) < 1:
        raise ValueError(f"shape {list(sizes)} has no elements")
    if prod(sizes) > MOST_BYTES or (sizes and max(sizes) > MOST):
        raise ValueError(f"shape {list(sizes)} has more than {MOST_BYTES:.0e} elements, or {MOST:.0f} in one dimension")
    return sizes


def extent(text: str, dims: Mapping[str, int]) -> int:
    """Return the size of a named dimension, or of a product of names and numbers."""
    size = 1
    for part in text.split("*"):
        factor = part.strip()
        if factor.isascii() and factor.isdigit() and len(factor) < 16:
            size *= int(factor)
        elif factor in dims:
            size *= dims[factor]
        else:
            raise ValueError(f"dimension {factor[:100]!r} has no size: give it in dims")
    return size


def free_dims(shapes: Sequence[Sequence[int | str]]) -> list[str]:
    """Return the distinct names in shapes."""
    names = (part.strip() for shape in shapes for size in shape if isinstance(size, str) for part in size.split("*"))
    return list(dict.fromkeys(name for name in names if not name.isdigit()))


def binding(dims: Mapping[str, int], batch: int, sequence: int, names: Sequence[str] = ()) -> dict[str, int]:
    """Return sizes of the given names, and of the usual names of batch and sequence.

    `names` are the network's: of several usual names of the batch among them, the first of BATCH_NAMES is it.
    """
    others = [name for name in BATCH_NAMES if name in names][1:]
    usual = {name: dims.get(BATCH_NAMES[0], batch) for name in BATCH_NAMES if name not in others}
    usual |= dict.fromkeys(SEQUENCE_NAMES, dims.get(SEQUENCE_NAMES[0], sequence))
    return {**usual, **dims}


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


def transposed_convolution(x: Shape, weight: Shape, out: Shape, window: Window, groups: int) -> list[Step]:
    """Return the nodes of a convolution's data gradient, which it is: as many products as of `out` to `x`."""
    forward = convolution(out, weight, x, window, groups)
    first, *others = forward if forward[0].op == "expand" else [Step("expand", out), *forward]
    return [first, *(step._replace(inputs=(None,)) for step in others), Step("expand", out, {}, (None,))]


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
    """Return the nodes of a product of `a` and `b` in the last two dimensions; with `weights`, `b` is a parameter.

    One second matrix for all rows is a plain product, whose kernels may split the dimension that is summed over.
    """
    k, n = a[-1], b[-1] if len(b) > 1 else 1
    if prod(b[:-2]) == 1:
        if weights:
            return [Step("linear", out, {"m": max(prod(out) // n, 1), "n": n, "k": k})]
        if n == 1:  # a matrix times a vector reads the matrix once, as one row times its transpose
            return [Step("linear", out, {"m": 1, "n": prod(out), "k": k}, (1, 0))]
        return [Step("linear", out, {"m": max(prod(out) // n, 1), "n": n, "k": k}, (0, 1))]
    m = a[-2] if len(a) > 1 else 1
    return [Step("bmm", out, {"b": max(prod(out) // (m * n), 1), "m": m, "n": n, "k": k}, (0, 1))]
