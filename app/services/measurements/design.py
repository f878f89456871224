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

from app.wire.operators.row_forms import ROW_FORMS

# Rows of an operator and dtype that stand for its usual shapes.
DESIGNED = 48
# Operator -> its fields' least and most, or the single value that they have.
_ROWS = {"b": (64, 65536), "h": (128, 16384)}
_HEADS = {"batch": (1, 64), "heads": (8, 64), "kv_heads": (1, 8), "head_dim": (64, 128)}
RANGES: Mapping[str, Mapping[str, tuple[int, int] | int]] = {
    "linear": {"m": (1, 16384), "n": (256, 16384), "k": (256, 16384)},
    "bmm": {"b": (1, 512), "m": (32, 2048), "n": (32, 2048), "k": (32, 2048)},
    "conv2d": {
        "b": (1, 64),
        "in_channels": (16, 512),
        "out_channels": (16, 512),
        "input_size": (8, 128),
        "kernel_size": 3,
        "padding": 1,
    },
    "layer_norm": _ROWS,
    "softmax": _ROWS,
    "add": _ROWS,
    "gelu": _ROWS,
    "attention_prefill": _HEADS | {"batch": (1, 16), "context_length": (128, 8192)},
    "attention_decode": _HEADS | {"batch": (1, 256), "context_length": (128, 32768)},
    "moe": {
        "tokens": (1, 16384),
        "hidden": (1024, 8192),
        "intermediate": (512, 16384),
        "experts": (8, 128),
        "top_k": (1, 8),
    },
}


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
