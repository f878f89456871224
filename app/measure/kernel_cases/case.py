"""One launch of a kernel as its definition gives it, and what definitions are written with.

Counts are those of a kernel workload (docs/reference/nomenclature.md). FLOPs are the algorithm's: a sum of n numbers is
n, and the zeros around an image count. Bytes are of each array once; lanes that lie eight words apart move a sector of
32 bytes each; words that only atomics touch are in `atomic_operations` alone. Lane operations are loads, stores and
atomics, and the steps of loops without any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Extent = tuple[int, int]

WORD = 4
LINE = 256  # lanes of a block over one dimension


@dataclass(frozen=True, slots=True)
class Case:
    """One launch of one kernel, before any compiler has seen it.

    kernel, source  the function, and the file in app/measure/cuda that holds it
    grid, block     blocks and lanes in x and y
    counts          fields of a kernel workload that its definition gives
    draw            its arguments in the order of its parameters: arrays, and numbers of the parameters' types
    result          which of them it writes
    expected        what that one holds afterwards, by NumPy, from the arguments before
    """

    kernel: str
    source: str
    grid: Extent
    block: Extent
    counts: Mapping[str, Any]
    draw: Callable[[np.random.Generator], Sequence[Any]]
    result: int
    expected: Callable[..., Array]


def counts(
    size: Mapping[str, int], flops: int, moved: int, lanes: int, pattern: str = "coalesced", **more: float
) -> dict[str, Any]:
    """Fields of a workload that touches each byte once, unless `more` says otherwise."""
    work = {"flops": flops, "bytes": moved, "working_set_bytes": moved, "lane_operations": lanes}
    return {"dtype": "fp32", "access_pattern": pattern, "size": dict(size)} | work | more


def parts(whole: int, part: int) -> int:
    """How many parts cover the whole."""
    return -(-whole // part)


def line(n: int) -> tuple[Extent, Extent]:
    """Grid and block of one lane per element."""
    return (parts(n, LINE), 1), (LINE, 1)


def plane(rows: int, cols: int, edge: int) -> tuple[Extent, Extent]:
    """The same over two dimensions, by square blocks."""
    return (parts(cols, edge), parts(rows, edge)), (edge, edge)


def floats(random: np.random.Generator, *shape: int) -> Array:
    """Standard normal, FP32."""
    return random.standard_normal(shape, dtype=np.float32)


def zeros(*shape: int) -> Array:
    """What a kernel writes over."""
    return np.zeros(shape, np.float32)
