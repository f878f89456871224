"""Arrays that the compiled pass over operators reads and fills (app.predictors.auto.operators.inference)."""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np

from app.predictors.auto.operators.models.per_operator import MOST_KIN
from app.predictors.auto.operators.physics.analytic_model import Devices
from app.predictors.auto.operators.physics.operator_features import Traits
from app.tables.arrays import Bools, Floats, Ints, Singles

# Models that answer together at most: siblings, and few rows of the GPU itself.
MEMBERS = MOST_KIN + 1


class Rows(NamedTuple):
    """Operator rows and GPUs as compiled code reads them; `terms` [TERMS, queries] is filled with the physics."""

    shape: Singles
    traits: Traits
    devices: Devices
    terms: Floats


class Queries(NamedTuple):
    """What is asked: operator row `row[q]` on GPU row `gpu[q]`, int [m]; the first n of them are answered.

    order  int [n], queries of one operator, dtype and GPU next to one another
    twin   int [n], the query whose correction is applied to query q (q itself for most)
    other  int [n], the query whose correction makes `share[q]` of it; share float64 [n]
    """

    row: Ints
    gpu: Ints
    order: Ints
    twin: Ints
    other: Ints
    share: Floats


class Answers(NamedTuple):
    """Seconds and the stretch of their intervals, float64 [n]; bound, support and interval group, int [n]."""

    latency_s: Floats
    stretch: Floats
    bound: Ints
    situation: Ints
    group: Ints

    @classmethod
    def of(cls, n: int) -> Self:
        """Room for n answers."""
        return cls(np.empty(n), np.empty(n), *(np.empty(n, dtype=np.intp) for _ in range(3)))


class Trace(NamedTuple):
    """The terms of each answer, filled where a pass is traced, which one into UNTRACED is not.

    cell        int [n], the cell that answers, -1 none
    tile        int [n], the candidate tile that reaches most of the peak, -1 none
    dram_s      float64 [n], DRAM seconds before what a sibling says of them
    fading      float64 [n], part of the corrections that is left out of the range learned from
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
        """Room for n answers."""
        cell, tile, members = np.full(n, -1), np.full(n, -1), (np.zeros((MEMBERS, n)) for _ in range(2))
        return cls(cell, tile, np.empty(n), np.ones(n), np.ones(n, dtype=np.bool_), np.empty(n), *members)


UNTRACED = Trace.of(0)
