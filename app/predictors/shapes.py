"""Check the arrays of a stored state: compiled code reads them without looking at their bounds."""

from __future__ import annotations

from typing import Any

import numpy as np


def check_shape(what: str, array: Any, *shape: int | None) -> None:
    """Raise ValueError unless an array has this shape; None stands for any length."""
    found = np.shape(array)
    if len(found) != len(shape) or any(most not in (None, here) for here, most in zip(found, shape, strict=True)):
        raise ValueError(f"{what} are {found}, not {shape}")


def check_below(what: str, array: Any, stop: int, least: int = 0) -> None:
    """Raise ValueError unless every number of an array lies in [least, stop)."""
    values = np.asarray(array)
    if values.size and not (least <= values.min() and values.max() < stop):
        raise ValueError(f"{what} are not all from {least} to {stop - 1}")
