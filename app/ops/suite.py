"""How an operator is measured: the sizes that the measuring suite draws, and what it runs.

PyTorch comes in by `Maker`, so that operators can be imported where there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

Sizes = dict[str, Any]
# A row in the measurements form: field -> value.
Row = Mapping[str, Any]

PLAIN = ("fp32", "bf16", "fp16", "fp64")
PRODUCTS = ("fp32", "bf16", "fp16", "tf32", "fp64")
NARROW = ("bf16", "fp16", "fp32")
# Sides m = n of K sweeps, and their depths.
SWEEP_SIDES, SWEEP_DEPTHS = (1024, 2048, 4096), tuple(1 << power for power in range(5, 15))


class Log(NamedTuple):
    """A whole number from `low` to `high`, evenly over its logarithm, always a multiple of `step`."""

    low: int
    high: int
    step: int = 1


class Pick(NamedTuple):
    """One of some values, each as often."""

    options: tuple[Any, ...]


Axis = Log | Pick
ROWS, WIDTH = Log(1, 1 << 20), Log(8, 1 << 16)


class Made(NamedTuple):
    """An operator ready to run: `forward` computes it, `learned` are the tensors that backward finds gradients of."""

    forward: Callable[[], Any]
    learned: tuple[Any, ...]


class Maker(Protocol):
    """PyTorch on one device, and random tensors there in one format."""

    @property
    def torch(self) -> Any:
        """The module."""
        ...

    @property
    def device(self) -> Any:
        """The device, as PyTorch names it."""
        ...

    @property
    def dtype(self) -> Any:
        """The format, as PyTorch names it."""
        ...

    def normal(self, *shape: int) -> Any:
        """Normal numbers."""
        ...

    def positive(self, *shape: int) -> Any:
        """Numbers between 0.5 and 1.5."""
        ...

    def whole(self, below: int, *shape: int) -> Any:
        """64-bit numbers from 0."""
        ...


Family = Callable[[Maker, Row], Made]


@dataclass(frozen=True, slots=True)
class Space:
    """An operator's part of the suite.

    axes     of its fields, or of what `finish` makes fields of
    dtypes   formats that PyTorch has it in
    build    a row's tensors, and the call that computes the operator
    finish   the fields from the axes; None where they contradict one another
    back     whether backward is measured too
    share    how many of its points a round has
    every    in which of the rounds: every one, every second one, ...
    build_fp8  the same in FP8, where PyTorch has another call for that; None: it has none
    aligned  fields that must be multiples of 16 in FP8
    swept    fields of K sweeps beside m, n and k; None: it is not swept
    """

    axes: Mapping[str, Axis]
    dtypes: tuple[str, ...]
    build: Family
    finish: Callable[[Sizes], Sizes | None] = dict
    back: bool = True
    share: int = 1
    every: int = 1
    build_fp8: Family | None = None
    aligned: tuple[str, ...] = ()
    swept: Mapping[str, int] | None = None


def unary(compute: Callable[[Any, Any], Any]) -> Family:
    """Of PyTorch and `b` rows of `h`."""

    def build(make: Maker, row: Row) -> Made:
        x = make.normal(row["b"], row["h"])
        return Made(lambda: compute(make.torch, x), (x,))

    return build


def pair(side: Any) -> list[int]:
    """[height, width] of one number or both."""
    return list(side) if isinstance(side, list) else [side, side]
