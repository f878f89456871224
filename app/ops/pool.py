"""Pooling: `max_pool2d` and `avg_pool2d` of `b` images of `channels`.

Output size as a convolution's. FLOPs = one operation per element of a window (PyTorch's kernels visit each); bytes =
input + output, each once. Backward writes the input's gradient from the output's; of a maximum it also reads the
64-bit index that forward kept per output. A `stride` left out is the window, as in PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple, Self

import numpy as np

from app.coefficients import Coefficients
from app.ops.base import COMMON, Dim, Op
from app.ops.conv import fits
from app.ops.figures import Prior, Rereads, Work
from app.ops.images import CHANNELS_LAST, PADDING, WINDOW_DIMS, Plane, plane, slid
from app.ops.suite import PLAIN, Axis, Family, Log, Made, Maker, Pick, Row, Sizes, Space, pair
from app.tables.arrays import Floats
from app.tables.ops import DTYPE_BYTES, OUTPUT_BYTES, OpTable

_FITTED = Coefficients("operators")
_INDEX_BYTES = 8.0


class _Costs(NamedTuple):
    """SM clocks of a thread, and of each element of its window: forward, a thread per output; backward, per input."""

    forward: tuple[float, ...]
    backward: tuple[float, ...]

    @classmethod
    def of(cls, name: str) -> Self:
        """Return the costs of this name in the coefficients."""
        return cls(**_FITTED.tuples_by_name(name))


_INPUT: tuple[Literal["input"], ...] = ("input",)


def _side(size: Floats, kernel: Floats, stride: Floats, padding: Floats) -> Floats:
    return slid(size, kernel, np.where(np.isnan(stride), kernel, stride), padding)


def _output(table: OpTable) -> Plane:
    parts = [plane(table, name) for name in ("input_size", "kernel_size", "stride", "padding")]
    return Plane(*(_side(*sides) for sides in zip(*parts, strict=True)))


def _handed(table: OpTable) -> Floats:
    """Images in."""
    elements = table.column("b") * table.column("channels") * plane(table, "input_size").area
    images: Floats = elements * DTYPE_BYTES[table.dtype]
    return images


def _work(index_bytes: float) -> Callable[[OpTable], Work]:
    def work(table: OpTable) -> Work:
        outputs = table.column("b") * table.column("channels") * _output(table).area
        moved = _handed(table) + outputs * OUTPUT_BYTES[table.dtype]
        moved = moved + table.column("backward") * index_bytes * outputs
        return Work(outputs * plane(table, "kernel_size").area, moved, moved)

    return work


def _rereads(costs: _Costs) -> Callable[[OpTable], Rereads]:
    def rereads(table: OpTable) -> Rereads:
        """Nothing is read again, but every thread finds its window by divisions of integers."""
        back, kernel, size = table.column("backward") > 0.0, plane(table, "kernel_size"), plane(table, "input_size")
        images = table.column("b") * table.column("channels")
        outputs = images * _output(table).area
        visited = outputs * kernel.area
        threads = np.where(back, images * size.area, outputs)
        thread, element = (np.where(back, *pair) for pair in zip(costs.backward, costs.forward, strict=True))
        whole = (kernel.height == size.height) & (kernel.width == size.width)
        clocks = np.where(whole, 0.0, thread * threads + element * visited)
        return Rereads.of_clocks(clocks)

    return rereads


_DIMS = (
    Dim("b", "images"),
    Dim("channels", "channels"),
    *WINDOW_DIMS,
    Dim("stride", "step of the window; absent: the window", default=np.nan, pair=True, absent="kernel_size"),
    PADDING,
    CHANNELS_LAST,
    *COMMON,
)


def _build(name: str) -> Family:
    def build(make: Maker, row: Row) -> Made:
        compute = getattr(make.torch.nn.functional, name)
        x = make.normal(row["b"], row["channels"], *pair(row["input_size"]))
        kernel, padding = pair(row["kernel_size"]), pair(row.get("padding", 0))
        stride = pair(row.get("stride", kernel))
        return Made(lambda: compute(x, kernel, stride, padding), (x,))

    return build


def _within(sizes: Sizes) -> Sizes | None:
    return sizes if sizes["kernel_size"] <= sizes["input_size"] else None


_AXES: Mapping[str, Axis] = {
    "b": Log(1, 256),
    "channels": Log(1, 2048),
    "kernel_size": Pick((2, 3, 7)),
    "input_size": Log(7, 256),
    "stride": Pick((1, 2)),
}
POOL_OPS = tuple(
    Op(
        name,
        "pool",
        _DIMS,
        _work(index_bytes),
        check=fits,
        prior=Prior.of("pool"),
        rereads=_rereads(costs),
        handed=_handed,
        traffic="moves",
        saves=saves,
        suite=Space(_AXES, PLAIN, _build(name), _within),
        example={"b": 32, "channels": 128, "kernel_size": 3, "input_size": 56},
    )
    for name, index_bytes, saves, costs in (
        ("max_pool2d", _INDEX_BYTES, _INPUT, _Costs.of("max_pool_clocks")),
        ("avg_pool2d", 0.0, (), _Costs.of("avg_pool_clocks")),
    )
)
