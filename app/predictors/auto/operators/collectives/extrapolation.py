"""Collective extrapolation: corrections of collectives outside the training range, and between numbers of devices.

The physics errs alike for the largest trained message and larger ones, which wait for the same link, and for the
smallest and smaller ones, which wait for the same launches; likewise for the most and the fewest devices. So a row
outside the range gets the correction of the nearest row inside, its fallback, without fading; one of a library that was
not measured on its GPU that of the measured one. Between two numbers of devices the corrections of both are
interpolated in the logarithm of the number.
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

# Largest difference of two equal sizes, as logarithms: features are rounded.
_ROUNDED = 1e-3


class Fallback(NamedTuple):
    """The m rows whose corrections apply to queries outside the training range, of n queries.

    query        int [m], the query of each; a query between two numbers of devices has two
    message_bytes, devices, library  float64 [m]
    twin, other  int [n], the rows of the m whose corrections apply to a query, -1 its own
    share        float64 [n], weight of the correction of `other`
    """

    query: Ints
    message_bytes: Floats
    devices: Floats
    library: Floats
    twin: Ints
    other: Ints
    share: Floats


def fallback_rows(
    shape: Singles, codes: tuple[Ints, Ints], asked: tuple[Ints, Ints], packed: Packed, gpu_models: GpuModels
) -> Fallback:
    """The fallback of each query that needs one; arguments as of `cells_of`."""
    held = _held(shape, codes, asked, packed, gpu_models)
    first, second = np.flatnonzero(~np.isnan(held[0])), np.flatnonzero(held[4] > 0.0)
    twin = np.full(held.shape[1], -1)
    twin[first] = np.arange(len(first))
    other = twin.copy()
    other[second] = len(first) + np.arange(len(second))
    query = np.append(first, second)
    message, library = held[0, query], held[3, query]
    devices = np.append(held[1, first], held[2, second])
    return Fallback(query, message, devices, library, twin, other, np.nan_to_num(held[4]))


@compiled
def _held(
    shape: Singles, codes: tuple[Ints, Ints], asked: tuple[Ints, Ints], packed: Packed, gpu_models: GpuModels
) -> Floats:
    """Message bytes, two numbers of devices, library, and the share of the second number, float64 [5, n].

    NaN for queries that need no fallback.
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
    """The two measured numbers of devices around `devices`, and the weight of the second; all logarithms.

    `devices` twice where nothing was measured. `measured` is sorted and padded with infinity.
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


def with_fallback(ops: OpTable, i: Ints, held: Fallback) -> OpTable:
    """Rows `i` [m] with the sizes and libraries of their fallbacks."""
    rows = ops.take(i)
    for name, column in (
        ("message_bytes", held.message_bytes),
        ("devices", held.devices),
        ("implementation", held.library),
    ):
        rows.dims[rows.fields[name]] = column
    return rows
