"""Collectives unlike those that were learned from: larger or smaller messages, more devices, numbers between.

What the physics misses of the largest message it misses alike of larger ones, as both wait for the same link, and of
the smallest alike of smaller ones, as both wait for the same launches. So it is with the most and the fewest devices:
how one more is wired no row tells, but that it waits for the same links. So beyond what was measured a row is corrected
as the nearest within, and not less the further it is; a library that its GPU lacks as the one that it has. Between two
numbers of devices a row is corrected as both are, by where the logarithm of its own lies.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from app.predictors.auto.operators.models.features import DEVICES, LIBRARY, MESSAGE
from app.predictors.auto.operators.models.packed import GpuModels, Packed
from app.predictors.auto.operators.models.ranges import cells_of
from app.predictors.priors import IS_COLLECTIVE
from app.runtime.compiled import compiled
from app.tables.arrays import Floats, Ints, Singles
from app.tables.ops import OpTable

# How far a size may be from one that was measured, as features are rounded.
_ROUNDED = 1e-3


class StandIns(NamedTuple):
    """Rows that were learned from, in place of those queries, of n, that are none of them.

    query       int [m], which query each stands in for; twice where two numbers of devices do
    message_bytes, devices, library  float64 [m]
    one, other  int [n], which of the m a query is corrected as, and which besides, -1 as itself
    share       float64 [n], how much of the correction `other` makes
    """

    query: Ints
    message_bytes: Floats
    devices: Floats
    library: Floats
    one: Ints
    other: Ints
    share: Floats


def stand_ins(
    shape: Singles, codes: tuple[Ints, Ints], asked: tuple[Ints, Ints], packed: Packed, gpu_models: GpuModels
) -> StandIns:
    """What is asked in place of collectives beyond or between what was learned; arguments as of `cells_of`."""
    held = _held(shape, codes, asked, packed, gpu_models)
    first, second = np.flatnonzero(~np.isnan(held[0])), np.flatnonzero(held[4] > 0.0)
    one = np.full(held.shape[1], -1)
    one[first] = np.arange(len(first))
    other = one.copy()
    other[second] = len(first) + np.arange(len(second))
    query = np.append(first, second)
    message, library = held[0, query], held[3, query]
    devices = np.append(held[1, first], held[2, second])
    return StandIns(query, message, devices, library, one, other, np.nan_to_num(held[4]))


@compiled
def _held(
    shape: Singles, codes: tuple[Ints, Ints], asked: tuple[Ints, Ints], packed: Packed, gpu_models: GpuModels
) -> Floats:
    """Message, two numbers of devices, library, and the share of the second number, [5, n].

    NaN of queries that need none.
    """
    cells, (i, j), (kind, _) = cells_of(shape, codes, asked, packed, gpu_models), asked, codes
    held = np.full((5, len(i)), np.nan)
    for q in range(len(i)):
        cell, row, gpu = cells[q], i[q], j[q]
        if not IS_COLLECTIVE[kind[row]] or cell < 0:
            continue
        message, devices, library = shape[MESSAGE, row], shape[DEVICES, row], shape[LIBRARY, row]
        nearest = min(max(message, packed.low[cell, MESSAGE]), packed.high[cell, MESSAGE])
        has = min(max(library, gpu_models.library[cell, gpu, 0]), gpu_models.library[cell, gpu, 1])
        one, other, share = _around(devices, gpu_models.devices[cell, gpu])
        if max(abs(nearest - message), abs(has - library), abs(one - devices)) > _ROUNDED:
            held[0, q], held[3, q], held[4, q] = np.exp(nearest), has, share
            held[1, q], held[2, q] = np.exp(one), np.exp(other)
    return held


@compiled
def _around(devices: float, measured: Floats) -> tuple[float, float, float]:
    """The measured numbers of devices around one, and the share of the second; logarithms.

    Itself twice where nothing was measured; `measured` in order, infinite where there are no more.
    """
    if not len(measured) or np.isinf(measured[0]):
        return devices, devices, 0.0
    last = measured[0]
    for more in measured[1:]:
        if np.isinf(more):
            break
        if devices < more - _ROUNDED:
            return last, more, max((devices - last) / (more - last), 0.0)
        last = more
    return last, last, 0.0


def with_stand_ins(ops: OpTable, i: Ints, held: StandIns) -> OpTable:
    """Rows `i` [m] as those that stand in for them."""
    rows = ops.take(i)
    for name, column in (
        ("message_bytes", held.message_bytes),
        ("devices", held.devices),
        ("implementation", held.library),
    ):
        rows.dims[rows.fields[name]] = column
    return rows
