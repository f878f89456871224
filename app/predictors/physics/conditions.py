"""What a cap on the board power and another host change: a predicted time changes as much as the analytic one.

Under a cap the clock model lowers the clock of products. A host launches eager operators in a time of its own. Who
predicted the time at the board's own power and of the usual host does not matter, and what a condition leaves alone in
the analytic model stays as it is.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from app.bands.band import Band
from app.coefficients import Coefficients
from app.ops import OP_CODE, kinds_of, work_of
from app.ops.network import NETWORK
from app.predictors.physics.analytic_model import (
    ANY_TILE,
    LEAST,
    LIMIT,
    OVERHEAD,
    TERMS,
    WORK_S,
    devices_of,
    fill_terms,
)
from app.predictors.physics.clock_model import BUSY, bandwidths, compute_rates
from app.predictors.physics.operator_features import operator_features, products_of
from app.predictors.priors import IS_COLLECTIVE, IS_EAGER
from app.stacks.facts import Host
from app.tables.arrays import Bools, Floats, Ints
from app.tables.gpus import COLUMN_INDEX, GpuSpec, GpuTable
from app.tables.ops import OpTable
from app.tables.predictions import INTERPOLATED, MEASURED, Predictions

_FITTED = Coefficients("physics")

# A cap under this part of the board power is another unit or a mistake: drivers refuse it.
LEAST_PART = _FITTED.number("least_power_cap")
# Seconds of an eager launch by host, as ratios to that of the usual one.
_LAUNCH_S = _FITTED.by_name("eager_launch_s")
_BOARD = COLUMN_INDEX["board_power_w"]
# Rows of one figure of work, whose kernels the analytic model does not know.
_WHOLE = [OP_CODE["kernel"], OP_CODE[NETWORK.name]]


def refusal(spec: GpuSpec, watts: float) -> str | None:
    """Return why a board cannot be capped at `watts`; None if it can."""
    board_w = spec.board_power_w
    if board_w is None:
        return f"the board power of {spec.id} is unknown, so that a cap on it says nothing"
    if LEAST_PART * board_w <= watts <= board_w:
        return None
    side = "over" if watts > board_w else f"under {LEAST_PART:g} of"
    return f"is {side} the board power of {spec.id}, {board_w:g} W, got {watts:g}"


def under_cap(
    answer: Predictions, ops: OpTable, gpus: GpuTable, i: Ints, j: Ints, coverage: float, watts: float
) -> Predictions:
    """Return the answer for operator row `i[q]` on GPU row `j[q]` of boards that are capped at `watts`."""
    capped = gpus.take(np.arange(len(gpus)))
    capped.values[_BOARD] = np.minimum(capped.values[_BOARD], watts)
    slowed = (gpus.values[_BOARD, j] > watts) & ~IS_COLLECTIVE[ops.kind[i]]
    return _changed(answer, ops, (gpus, capped), (i, j), coverage, slowed)


def on_host(
    answer: Predictions, ops: OpTable, gpus: GpuTable, i: Ints, j: Ints, coverage: float, host: Host
) -> Predictions:
    """Return the answer for operator row `i[q]` on GPU row `j[q]` where another host than the usual one launches."""
    eager = ops.column("eager")
    launched = np.where(np.isnan(eager), IS_EAGER[ops.dtype], eager > 0.0) & ~IS_COLLECTIVE[ops.kind]
    share = _LAUNCH_S[host] / _LAUNCH_S["datacenter"]
    return _changed(answer, ops, (gpus, gpus), (i, j), coverage, launched[i], share)


def _changed(
    answer: Predictions,
    ops: OpTable,
    gpus: tuple[GpuTable, GpuTable],
    at: tuple[Ints, Ints],
    coverage: float,
    where: Bools,
    host_share: float = 1.0,
) -> Predictions:
    """Return the answer, changed `where` a condition holds: by GPUs without and under it, and the host's share."""
    rows = np.flatnonzero(where)
    if not len(rows):
        return answer
    (some, row), (targets, gpu) = (np.unique(each[rows], return_inverse=True) for each in at)
    ops = ops.take(some)
    seconds = _whole_s if np.isin(ops.kind, _WHOLE).all() else _operators_s
    before_s, after_s = (
        seconds(ops, table.take(targets), row, gpu, share) for table, share in zip(gpus, (1.0, host_share), strict=True)
    )
    factor = np.ones(len(where))
    factor[rows] = after_s / before_s
    changed, band = factor != 1.0, Band.of(answer.latency_s, answer.low_s, answer.high_s, coverage)
    latency_s = np.maximum(factor * answer.latency_s, answer.limit_s)
    ends = band.after(factor).ends(latency_s, coverage)
    latency_s, low_s, high_s = (
        np.where(changed, np.maximum(after, answer.limit_s), before)
        for after, before in zip((latency_s, *ends), (answer.latency_s, answer.low_s, answer.high_s), strict=True)
    )
    support = np.where(changed & (answer.support == MEASURED), INTERPOLATED, answer.support)
    return replace(answer, latency_s=latency_s, low_s=low_s, high_s=high_s, support=support)


def _operators_s(ops: OpTable, gpus: GpuTable, i: Ints, j: Ints, host_share: float) -> Floats:
    """Return the analytic seconds of deep-learning operators whose host takes this share of its usual time, [n]."""
    kinds, terms = kinds_of(ops), np.empty((TERMS, len(i)))
    features = operator_features(ops, kinds, products_of(kinds))
    fill_terms(features, devices_of(gpus), (i, j), np.full(len(i), ANY_TILE), terms)
    launch_s, least_s = host_share * terms[[OVERHEAD, LEAST]]
    seconds: Floats = np.maximum(np.maximum(launch_s + terms[WORK_S], least_s), terms[LIMIT])
    return seconds


def _whole_s(ops: OpTable, gpus: GpuTable, i: Ints, j: Ints, _: float) -> Floats:
    """Return seconds at the sustained rate or bandwidth, whichever takes longer, [n]."""
    work = work_of(ops, kinds_of(ops))
    compute_s = np.nan_to_num(work.flops[i] / compute_rates(gpus)[BUSY, ops.dtype[i], j])
    memory_s = work.bytes[i] / bandwidths(gpus)[j]
    seconds: Floats = np.maximum(np.maximum(compute_s, memory_s), np.finfo(np.float64).tiny)
    return seconds
