"""What every operator family provides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.tables.ops import OpTable

Floats = NDArray[np.float64]


class Work(NamedTuple):
    """What rows ask of a device, float64 [n] each.

    flops              floating-point (or integer) operations
    bytes              bytes read and written, each counted once per use that leaves the SM
    working_set_bytes  distinct bytes touched
    """

    flops: Floats
    bytes: Floats
    working_set_bytes: Floats


@dataclass(frozen=True, slots=True)
class Op:
    """An operator family: its name, the dims its rows carry, and its work."""

    name: str
    fields: tuple[str, ...]
    work: Callable[[OpTable], Work]
