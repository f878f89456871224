"""What a cap on the board power changes: the clock under products, and so their time.

The clock model says at which clock a board runs its products at either power. A predicted time, whoever predicted it at
the board's own power, takes as many times longer as the analytic time does. What memory, links, launches or the host
bound stays as it is.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from app.coefficients import Coefficients
from app.ops import OP_CODE, kinds_of, work_of
from app.ops.network import NETWORK
from app.predictors.physics.analytic_model import (
    ANY_TILE,
    COMPUTE_S,
    DRAM_S,
    L2_S,
    TERMS,
    TIME,
    devices_of,
    fill_terms,
)
from app.predictors.physics.clock_model import BUSY, bandwidths, compute_rates
from app.predictors.physics.operator_features import operator_features, products_of
from app.predictors.priors import IS_COLLECTIVE
from app.tables.arrays import Bools, Floats, Ints
from app.tables.gpus import COLUMN_INDEX, GpuTable
from app.tables.ops import OpTable
from app.tables.predictions import COMPUTE, INTERPOLATED, MEASURED, Predictions

# Half-width of a cap's effect over the effect, both in log space.
SPREAD = Coefficients("physics").number("power_cap_spread")
# A cap under this part of the board power is another unit or a mistake: drivers refuse it.
LEAST_PART = Coefficients("physics").number("least_power_cap")
_BOARD = COLUMN_INDEX["board_power_w"]
# Rows of one figure of work, whose kernels the analytic model does not know.
_WHOLE = [OP_CODE["kernel"], OP_CODE[NETWORK.name]]


class Slowdown(NamedTuple):
    """What a cap does to n queries: `factor` float64 [n], times longer, and bool [n], whether compute bounds it now."""

    factor: Floats
    by_compute: Bools


def refusal(gpu: str, board_w: float, watts: float) -> str | None:
    """Return why a board of this power, NaN if unknown, cannot be capped at `watts`; None if it can."""
    if np.isnan(board_w):
        return f"the board power of {gpu} is unknown, so that a cap on it says nothing"
    if watts > board_w:
        return f"is over the board power of {gpu}, {board_w:g} W, got {watts:g}"
    if watts < LEAST_PART * board_w:
        return f"is under {LEAST_PART:g} of the board power of {gpu}, {board_w:g} W, got {watts:g}"
    return None


def slowdown(ops: OpTable, gpus: GpuTable, i: Ints, j: Ints, watts: float) -> Slowdown:
    """Return the slowdown of operator row `i[q]` on GPU row `j[q]`, whose board is capped at `watts`."""
    done = Slowdown(np.ones(len(i)), np.zeros(len(i), dtype=np.bool_))
    changed = np.flatnonzero((gpus.values[_BOARD, j] > watts) & ~IS_COLLECTIVE[ops.kind[i]])
    if not len(changed):
        return done
    rows, row = np.unique(i[changed], return_inverse=True)
    targets, gpu = np.unique(j[changed], return_inverse=True)
    ops, own = ops.take(rows), gpus.take(targets)
    capped = gpus.take(targets)
    capped.values[_BOARD] = np.minimum(capped.values[_BOARD], watts)
    seconds = _whole_s if np.isin(ops.kind, _WHOLE).all() else _operators_s
    (before_s, before), (after_s, after) = (seconds(ops, table, row, gpu) for table in (own, capped))
    done.factor[changed] = np.fmax(after_s / before_s, 1.0)
    done.by_compute[changed] = after & ~before
    return done


def capped(answer: Predictions, ops: OpTable, gpus: GpuTable, i: Ints, j: Ints, watts: float) -> Predictions:
    """Return the `answer` of these queries at their boards' own power, with the boards capped at `watts`."""
    factor, by_compute = slowdown(ops, gpus, i, j, watts)
    slower = factor > 1.0
    return Predictions(
        latency_s=factor * answer.latency_s,
        low_s=factor ** (1.0 - SPREAD) * answer.low_s,
        high_s=factor ** (1.0 + SPREAD) * answer.high_s,
        limit_s=answer.limit_s,
        bound=np.where(by_compute, COMPUTE, answer.bound),
        support=np.where(slower & (answer.support == MEASURED), INTERPOLATED, answer.support),
        group=answer.group,
        answered=answer.answered,
    )


def _operators_s(ops: OpTable, gpus: GpuTable, i: Ints, j: Ints) -> tuple[Floats, Bools]:
    """Return analytic seconds of deep-learning operators, and whether compute bounds them, [n] each."""
    kinds, terms = kinds_of(ops), np.empty((TERMS, len(i)))
    features = operator_features(ops, kinds, products_of(kinds))
    fill_terms(features, devices_of(gpus), (i, j), np.full(len(i), ANY_TILE), terms)
    return terms[TIME], terms[COMPUTE_S] > np.maximum(terms[DRAM_S], terms[L2_S])


def _whole_s(ops: OpTable, gpus: GpuTable, i: Ints, j: Ints) -> tuple[Floats, Bools]:
    """Return seconds at the sustained rate and bandwidth, and whether the rate bounds them, [n] each."""
    work = work_of(ops, kinds_of(ops))
    compute_s = np.nan_to_num(work.flops[i] / compute_rates(gpus)[BUSY, ops.dtype[i], j])
    memory_s = work.bytes[i] / bandwidths(gpus)[j]
    return np.hypot(compute_s**2, memory_s**2) ** 0.5, compute_s > memory_s
