"""Collective extrapolation: corrections of collectives outside the training range, and between numbers of devices.

The physics errs alike for the largest trained message and larger ones, which wait for the same link, and for the
smallest and smaller ones, which wait for the same launches; likewise for the most and the fewest devices. So a row
outside the range gets the correction of the nearest row inside, its fallback, without fading; one of a library that was
not measured on its GPU that of the measured one. Between two numbers of devices the corrections of both are
interpolated in the logarithm of the number.
"""

from __future__ import annotations

import numpy as np

from app.predictors.auto.operators.models.features import DEVICES, LIBRARY, MESSAGE
from app.predictors.auto.operators.models.packed import GpuModels, Packed
from app.predictors.auto.operators.models.ranges import cells_of
from app.predictors.auto.operators.queries import Queries
from app.predictors.priors import IS_COLLECTIVE
from app.runtime.compiled import compiled
from app.tables.arrays import Floats, Ints, Singles
from app.tables.ops import OpTable, concatenate

# Largest difference of two equal sizes, as logarithms: features are rounded.
_ROUNDED = 1e-3


def with_fallbacks(
    ops: OpTable, shape: Singles, queries: Queries, packed: Packed, gpu_models: GpuModels
) -> tuple[OpTable, Queries]:
    """Return `ops` followed by fallbacks, and `queries` with those as twins; a query between two numbers has two.

    `ops` and `queries` themselves if no query needs one.
    """
    held = _held(shape, (ops.kind, ops.dtype), (queries.row, queries.gpu), packed, gpu_models)
    message, fewer, more, library, share = held
    first, second = np.flatnonzero(~np.isnan(message)), np.flatnonzero(share > 0.0)
    query, n = np.append(first, second), len(message)
    if not len(query):
        return ops, queries
    twin = queries.twin.copy()
    twin[first] = n + np.arange(len(first))
    other = twin.copy()
    other[second] = n + len(first) + np.arange(len(second))
    columns = {"message_bytes": message[query], "implementation": library[query]}
    columns["devices"] = np.append(fewer[first], more[second])
    rows = ops.take(queries.row[query]).with_columns(columns)
    row = np.append(queries.row, len(ops) + np.arange(len(query)))
    gpu = np.append(queries.gpu, queries.gpu[query])
    return concatenate([ops, rows]), Queries(row, gpu, queries.order, twin, other, np.nan_to_num(share))


@compiled
def _held(
    shape: Singles, codes: tuple[Ints, Ints], asked: tuple[Ints, Ints], packed: Packed, gpu_models: GpuModels
) -> Floats:
    """Message bytes, two numbers of devices, library, and the share of the second number, float64 [5, n].

    NaN for queries that need no fallback; arguments as of `cells_of`.
    """
    cells, (i, j), (kind, _) = cells_of(shape, codes, asked, packed, gpu_models), asked, codes
    held = np.full((5, len(i)), np.nan)
    for q in range(len(i)):
        cell, row, gpu = cells[q], i[q], j[q]
        if not IS_COLLECTIVE[kind[row]]:
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
    known = measured[np.isfinite(measured)]
    if not len(known):
        return devices, devices, 0.0
    after = max(int(np.searchsorted(known - _ROUNDED, devices, side="right")), 1)
    one = float(known[after - 1])
    if after == len(known):
        return one, one, 0.0
    other = float(known[after])
    return one, other, max((devices - one) / (other - one), 0.0)
