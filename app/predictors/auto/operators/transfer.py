"""Transfer of corrections: from siblings to a GPU without measurements, and of collectives beyond what was measured.

Siblings have the same architecture key. The physics model how a time scales between siblings, and the residual of an
operator is assumed to be the same on both. So the donor's model is evaluated on the features that the operator has on
the donor, where the model was trained. With the features on the queried GPU, a few more SMs would move the operator
across thresholds of the trees to leaves of other operators, and a GPU that is better in every figure could be predicted
slower.

A kernel that gets far less DRAM bandwidth than streaming does waits for something else, which more bandwidth does not
shorten. So of the DRAM seconds on the donor, the part beyond streaming time scales with SMs and clock instead. The same
holds if the tensor peak of the GPU is reduced and the donor's is not: what limits the donor's tensor units, mostly
board power, does not limit slower ones.

Collectives: the physics errs alike for the largest trained message and larger ones, which wait for the same link, and
for the smallest and smaller ones, which wait for the same launches; likewise for the most and the fewest devices. So a
row outside the range gets the correction of the nearest row inside, its fallback, without fading; one of a library that
was not measured on its GPU that of the measured one. Between two numbers of devices the corrections of both are
interpolated in the logarithm of the number.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from app.bands.groups import S_SIBLING
from app.predictors.auto.operators.cell_choice import cells_of
from app.predictors.auto.operators.models.features import DEVICES, LIBRARY, MESSAGE
from app.predictors.auto.operators.models.packed import GpuModels, Packed
from app.predictors.auto.operators.queries import Queries
from app.predictors.physics.physics_fit import DRAM
from app.predictors.priors import BY_KIND, IN_TURN_SHARE, IS_COLLECTIVE
from app.runtime.compiled import compiled, compiled_per_row
from app.tables.arrays import Floats, Ints, Singles
from app.tables.gpus import GpuTable
from app.tables.ops import OpTable, concatenate


def donors_of(gpus: GpuTable, member: Ints, situation: Ints, homes: Sequence[str | None]) -> tuple[Ints, Floats]:
    """Return the donor of each model, a GPU row, int [..., gpus, members], and the bandwidth ratio, [..., gpus].

    A donor of -1 means that the model is evaluated on the queried GPU itself. The bandwidth ratio is that GPU's DRAM
    bandwidth per SM and clock over the geometric mean of its donors', 1 without donors. `member` [..., gpus, members]
    holds indices of models, -1 for none; `homes` the GPU on which each model was trained, None for several.
    """
    rows = {gpu: row for row, gpu in enumerate(gpus.ids)}
    home = np.array([*(-1 if gpu is None else rows.get(gpu, -1) for gpu in homes), -1], dtype=np.intp)  # last: none
    donor = np.where((situation == S_SIBLING)[..., None], home[member], -1)
    clocks, has_donor = gpus.column("sm_count") * gpus.column("boost_clock_hz"), donor >= 0
    own = np.log(gpus.column("memory_bandwidth_bytes_per_s") / clocks)
    over = np.where(has_donor, own[:, None] - own[donor], 0.0)
    bandwidth_ratio: Floats = np.exp(over.sum(axis=-1) / np.maximum(has_donor.sum(axis=-1), 1))
    return donor, bandwidth_ratio


@compiled_per_row
def dram_scale(kind: int, in_turn: bool, factors: Floats, correction: float, bandwidth_ratio: float) -> float:
    """Return the factor on the DRAM term of a GPU whose bandwidth ratio to its donor is `bandwidth_ratio`.

    `correction`: log(measured / physics under `factors`) on the donor. `in_turn`: whether the weights of other layers
    pass through the L2 before the operator runs again. 1 for collectives, which do not wait for DRAM.
    """
    if bandwidth_ratio == 1.0 or IS_COLLECTIVE[kind]:
        return 1.0
    streamed = IN_TURN_SHARE if in_turn else BY_KIND[kind, 1]
    part = min(streamed / (factors[DRAM] * np.exp(correction)), 1.0)
    return float(part + (1.0 - part) * bandwidth_ratio)


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
    shape: Singles, codes: tuple[Ints, Ints], queries: tuple[Ints, Ints], packed: Packed, gpu_models: GpuModels
) -> Floats:
    """Message bytes, two numbers of devices, library, and the share of the second number, float64 [5, n].

    NaN for queries that need no fallback; arguments as of `cells_of`.
    """
    cells, (i, j), (kind, _) = cells_of(shape, codes, queries, packed, gpu_models), queries, codes
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
