"""Shapes of operators to measure where no workload says which: powers of two that fill the usual ranges evenly.

Points of the additive recurrence with the generalised golden ratio, in the logarithms of the dimensions (Roberts 2018,
"The unreasonable effectiveness of quasirandom sequences").
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec
import numpy as np

from app.ops import OPS
from app.wire.operators.row_forms import ROW_FORMS

# Rows of an operator and dtype that stand for its usual shapes.
DESIGNED = 48
RANGES: Mapping[str, Mapping[str, tuple[int, int] | int]] = {op.name: op.usual for op in OPS if op.usual}


@cache
def design(op: str, dtype: str, count: int) -> tuple[Any, ...]:
    """`count` rows of an operator of RANGES in the API's form."""
    free = {name: given for name, given in RANGES[op].items() if not isinstance(given, int)}
    fixed = {name: given for name, given in RANGES[op].items() if isinstance(given, int)}
    low, high = (np.log2([ends[k] for ends in free.values()]) for k in (0, 1))
    points = (0.5 + np.outer(np.arange(1, count + 1), _steps(len(free)))) % 1.0
    sizes = 2 ** np.round(low + points * (high - low)).astype(int)
    return tuple(
        msgspec.convert({"op": op, "dtype": dtype, **fixed, **dict(zip(free, row, strict=True))}, ROW_FORMS[op])
        for row in sizes.tolist()
    )


def _steps(dimensions: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Steps of the recurrence: powers of 1 / g, where g^(dimensions + 1) = g + 1."""
    ratio = 2.0
    for _ in range(40):
        ratio = (1.0 + ratio) ** (1.0 / (dimensions + 1))
    return ratio ** -np.arange(1.0, dimensions + 1)
