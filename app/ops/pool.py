"""Pooling: `max_pool2d` and `avg_pool2d` of `b` images of `channels`.

Output size as a convolution's. FLOPs = one operation per element of a window (PyTorch's kernels visit each); bytes =
input + output, each once. Backward writes the input's gradient from the output's; of a maximum it also reads the
64-bit index that forward kept per output. A `stride` left out is the window, as in PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from app.ops.base import COMMON, Dim, Floats, Op, Work
from app.ops.conv import PADDING, WINDOW_DIMS, Plane, fits, plane, slid
from app.tables.ops import DTYPE_BYTES, OUTPUT_BYTES, OpTable

_INDEX_BYTES = 8.0


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


_DIMS = (
    Dim("b", "images"),
    Dim("channels", "channels"),
    *WINDOW_DIMS,
    Dim("stride", "step of the window; absent: the window", default=np.nan, pair=True),
    PADDING,
    *COMMON,
)
POOL_OPS = tuple(
    Op(name, "pool", _DIMS, _work(index_bytes), check=fits, handed=_handed)
    for name, index_bytes in (("max_pool2d", _INDEX_BYTES), ("avg_pool2d", 0.0))
)
