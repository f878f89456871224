"""Arrays that the compiled pass over operators reads and fills (app.predictors.auto.operators.inference)."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import numpy as np

from app.predictors.auto.operators.models.per_operator import MOST_SIBLINGS
from app.tables.arrays import Bools, Floats, Ints

# Most models of one answer: those of siblings, and the one of few rows of the GPU itself.
MEMBERS = MOST_SIBLINGS + 1


class Queries(NamedTuple):
    """Operator row `row[q]` on GPU row `gpu[q]`, int [m]; the first n are answered, the others are twins.

    order  int [n], queries of one operator, dtype and GPU next to one another
    twin   int [n], the query whose correction is applied to query q (q itself for most)
    other  int [n], the query whose correction is mixed in by `share[q]`, in 0 to 1
    share  float64 [n]
    """

    row: Ints
    gpu: Ints
    order: Ints
    twin: Ints
    other: Ints
    share: Floats


class Fit(NamedTuple):
    """What a cell learned for one GPU.

    factors    float64 [FACTORS], constants of the physics
    low, high  float64 [>= EAGER + 1], training range of the shape features; infinite where nothing was learned
    situation  code into SITUATIONS inside the training range
    devices    logarithm of the most devices of a collective in training, infinite for other operators
    dtype      code of the dtype trained on
    borrowed   whether that is another than the query's
    """

    factors: Floats
    low: Floats
    high: Floats
    situation: int
    devices: float
    dtype: Any
    borrowed: bool


class Block(NamedTuple):
    """Queries of one operator, dtype, cell and GPU, which are answered together.

    query       int [m], numbers of the queries
    row         int [m], operator row of each
    cell, gpu   row of the cell (-1: nothing was learned) and of the GPU
    distance    float64 [>= m], extrapolation distance of each: logarithm of how far its shape is out of the range, 0 in
    correction  float64 [>= m], log(time / physics) by the models of the cell, filled by `_fill_corrections`
    """

    query: Ints
    row: Ints
    cell: int
    gpu: int
    distance: Floats
    correction: Floats


class Answers(NamedTuple):
    """Answers of n queries, filled by the pass.

    latency_s  float64 [n], seconds
    stretch    float64 [n], factor by which the interval is wider, in log space
    bound      int [n], the term that bounds the time
    situation  int [n], code into SITUATIONS, of the support
    group      int [n], interval group
    """

    latency_s: Floats
    stretch: Floats
    bound: Ints
    situation: Ints
    group: Ints


class Trace(NamedTuple):
    """Terms of each answer; a pass into UNTRACED records none.

    cell        int [n], the cell that answers, -1 none
    tile        int [n], the candidate tile that reaches most of the peak, -1 none
    dram_s      float64 [n], DRAM seconds before they are scaled to a sibling
    fading      float64 [n], part of the corrections that is left at the extrapolation distance
    whole       bool [n], whether corrections apply to the whole time, not to the work alone
    physics_s   float64 [n], seconds under the fitted constants
    correction  float64 [MEMBERS, n], of each of the cell's models at full weight, in log space
    member_s    float64 [MEMBERS, n], seconds of the physics corrected by that model alone
    """

    cell: Ints
    tile: Ints
    dram_s: Floats
    fading: Floats
    whole: Bools
    physics_s: Floats
    correction: Floats
    member_s: Floats

    @classmethod
    def of(cls, n: int) -> Self:
        """Arrays for n answers."""
        cell, tile, members = np.full(n, -1), np.full(n, -1), (np.zeros((MEMBERS, n)) for _ in range(2))
        return cls(cell, tile, np.empty(n), np.ones(n), np.ones(n, dtype=np.bool_), np.empty(n), *members)


UNTRACED = Trace.of(0)
