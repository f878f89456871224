"""What operators of images share: planes of height and width, windows that slide over them, and their layout."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from app.ops.base import Dim
from app.tables.arrays import Floats
from app.tables.ops import DTYPE_CODE, OpTable

# Formats whose convolutions run on tensor units, codes.
ON_TENSOR_UNITS = [DTYPE_CODE[name] for name in ("fp16", "bf16", "tf32")]


class Plane(NamedTuple):
    """Height and width, float64 [n] each."""

    height: Floats
    width: Floats

    @property
    def area(self) -> Floats:
        """Elements of the plane."""
        return self.height * self.width


def plane(table: OpTable, name: str) -> Plane:
    """Both columns of a pair."""
    return Plane(table.column(f"{name}_height"), table.column(f"{name}_width"))


def slid(size: Floats, kernel: Floats, stride: Floats, padding: Floats) -> Floats:
    """Positions of a window of `kernel` in steps of `stride`, in elements."""
    positions: Floats = np.floor((size + 2.0 * padding - kernel) / stride) + 1.0
    return positions


WINDOW_DIMS = (
    Dim("kernel_size", "window, elements: one number or [height, width]", pair=True),
    Dim("input_size", "input, elements: one number or [height, width]", pair=True),
)
PADDING = Dim("padding", "zeros added on each side", least=0.0, default=0.0, pair=True)
CHANNELS_LAST = Dim(
    "channels_last",
    "1 where the channels of an element lie together (PyTorch's channels_last), 0 where a channel's elements do",
    least=0.0,
    default=0.0,
    most=1.0,
    feature="layout",
)
