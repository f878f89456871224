"""A network in many configurations at once: figures that are arrays, where one configuration has numbers.

What is written for numbers runs on arrays as it is, once for all configurations; only where it asks whether a figure is
so, they may have to part. Of a Workload of c configurations, `ops.dims` is [fields, c, n], figures of rows are [c, n],
`repeats` is [blocks] or [c, blocks]; what rows are, their order and edges, all configurations share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


class Parting(Exception):
    """Configurations go different ways: those of `these`, bool [c], and the others."""

    def __init__(self, these: Bools) -> None:
        super().__init__()
        self.these = these


class Figures(np.ndarray[Any, np.dtype[Any]]):
    """A figure of each configuration, [c]; true or false where it is so of all, else they part."""

    def __bool__(self) -> bool:
        so = np.asarray(self) != 0
        if so.all() or not so.any():
            return bool(so[0])
        raise Parting(so)


def figures(values: Sequence[float] | Floats) -> Any:
    """A number where all are equal, else Figures: where a number is asked for, either does."""
    array = np.asarray(values)
    return array[0].item() if (array == array[0]).all() else array.view(Figures)


def array_of(values: Sequence[float | None]) -> Floats:
    """Numbers as float64 [n], None as NaN; where some of them are Figures, [n, c]."""
    try:
        return np.array(values, dtype=np.float64)
    except ValueError:
        most = max(np.size(value) for value in values if value is not None)
        array = np.empty((len(values), most))
        for row, value in zip(array, values, strict=True):
            row[:] = np.nan if value is None else value
        return array


def by_row(column: Floats) -> Floats:
    """Figures of rows, [n] or [c, n], as [n, 1] or [n, c]: beside times of rows on GPUs or in configurations."""
    return np.atleast_2d(column).T
