"""From measured launches to other GPUs, sizes and kernels: a mixture over bottlenecks.

Under the hypothesis that one bottleneck holds a kernel up, each measurement fixes that bottleneck's cost and
so predicts the query. Which hypothesis is true is uncertain: its weight is a prior from what the launch says
of itself, times how well the sources agree with one another under it, times what training rows of the same
kernel showed. The answer is the weighted geometric mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.ops.kernel import ACCESS_CODE, FIELD_INDEX
from app.predictors.bottlenecks import Bottlenecks, lane_operations
from app.tables.measurements import Evidence
from app.tables.ops import OpTable

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

# A launch's fixed cost where its GPU was never measured: empty kernels take 2 to 5 us on NVIDIA GPUs since 2015.
FLOOR_S = 4e-6
# Traffic counts as the bottleneck around this share of the measured work, over this logistic width.
TRAFFIC_WIDTH = 0.08
# Lane operations beyond this multiple of (1 + FLOPs) are not operands of FLOPs: loops, atomics, extra transactions.
LOOP_RATIO = 4.0
# Prior of (latency, issue, arithmetic, serial) where traffic is not the bottleneck.
_PRIOR_PLAIN = np.array([0.85, 0.10, 0.05, 1e-4])
_PRIOR_LOOP = np.array([0.10, 0.60, 0.30, 1e-4])
_PRIOR_SERIAL = np.array([0.02, 0.10, 0.02, 0.86])
_LEAST_PRIOR = 1e-4
# Log-space spread of a source's answer by its relation (app.predictors.intervals.GROUPS, the weakest unused),
# and per unit of log distance in work: sizes far apart say less.
_SPREAD = np.array([0.03, 0.10, 0.20, 0.25, 0.60, 1.0])
_SPREAD_PER_LOG_WORK = 0.3
# Spread of one kernel's true cost about a true bottleneck, across GPUs.
AGREEMENT_SPREAD = 0.2

_DESCRIPTORS = np.array(
    [
        FIELD_INDEX[name]
        for name in ("flops", "bytes", "access_pattern", "branch_divergence", "atomic_operations", "atomic_addresses")
    ]
)[:, None]


@dataclass(frozen=True, slots=True)
class Shares:
    """The two figures chosen by holding each GPU out.

    floor    part of the launch floor that adds to the work; the rest overlaps with it
    traffic  traffic over measured work at which traffic becomes the likely bottleneck
    """

    floor: float = 0.8
    traffic: float = 0.65


def mechanism_prior(ops: OpTable, i: Ints) -> Floats:
    """Prior of every bottleneck but traffic, float64 [4, n], from what the launch says of itself."""
    flops, moved, pattern, divergence, atomics, addresses = ops.dims[_DESCRIPTORS, i]
    loops = lane_operations(ops, i) > LOOP_RATIO * (1.0 + flops)
    loops |= (pattern == ACCESS_CODE["strided"]) | (divergence > 0)
    serial = ((flops == 0) & (moved == 0)) | ((atomics > 0) & (addresses == 1))
    prior = np.where(loops, _PRIOR_LOOP[:, None], _PRIOR_PLAIN[:, None])
    return np.where(serial, _PRIOR_SERIAL[:, None], prior)


def hypothesis_prior(mechanisms: Floats, share: Floats, threshold: float) -> Floats:
    """Log prior of BOTTLENECKS, float64 [5, n], from mechanism prior [4, n] and traffic share of the work [n]."""
    traffic = 1.0 / (1.0 + np.exp((threshold - share) / TRAFFIC_WIDTH))
    prior = np.concatenate([traffic[None], mechanisms * (1.0 - traffic)])
    log_prior: Floats = np.log(prior + _LEAST_PRIOR)
    return log_prior


def work_s(latency_s: Floats, floor_s: Floats, limit_s: Floats, shares: Shares) -> Floats:
    """Measured time less the launch floor, float64 [m]: never under the hardware limit, nor under 2 %."""
    least = np.maximum(np.minimum(limit_s, latency_s), 0.02 * latency_s)
    return np.maximum(latency_s - shares.floor * floor_s, least)


def time_s(work: Floats, floor_s: Floats, shares: Shares) -> Floats:
    """The inverse: work and launch floor to time."""
    return np.maximum(floor_s, shares.floor * floor_s + work)


@dataclass(frozen=True, slots=True)
class Transferred:
    """Answers of m pairs under each hypothesis.

    log_work  float64 [5, m], log seconds of work of the query
    log_prior  float64 [5, m]
    """

    log_work: Floats
    log_prior: Floats


def transfer(work: Floats, mechanisms: Floats, source: Bottlenecks, target: Bottlenecks, shares: Shares) -> Transferred:
    """Carry the work of m sources to the targets of the same positions.

    Under every hypothesis work scales with the bottleneck's unit time; under those other than traffic the
    target must still move its bytes, and under all it stays over the hardware limit.
    """
    moves = source.unit_s[0] > 0
    ratio = target.unit_s / np.where(source.unit_s > 0, source.unit_s, np.inf)
    ratio[0] = np.where(moves, ratio[0], 1.0)
    least = np.maximum(target.unit_s[0], target.limit_s)
    scaled = np.maximum(work * ratio, np.stack([target.limit_s, least, least, least, least]))
    share = np.where(moves, source.unit_s[0] / work, -np.inf)
    return Transferred(np.log(np.maximum(scaled, 1e-12)), hypothesis_prior(mechanisms, share, shares.traffic))


def segment_sum(values: Floats, query: Ints, n: int) -> Floats:
    """Sum values [..., m] over the pairs of each query, float64 [..., n]."""
    if n == 1:
        total: Floats = values.sum(axis=-1, keepdims=True)
        return total
    flat = values.reshape(-1, values.shape[-1])
    sums: Floats = np.stack([np.bincount(query, row, n) for row in flat])
    return sums.reshape(*values.shape[:-1], n)


@dataclass(frozen=True, slots=True)
class Mixture:
    """Of n queries: log work under each hypothesis and its normalised weight, float64 [5, n] each."""

    log_work: Floats
    weight: Floats


def mix(pairs: Transferred, spread: Floats, learned: Floats, query: Ints, n: int) -> Mixture:
    """Combine the sources of every query.

    spread   float64 [m], log-space spread of every source's answer
    learned  float64 [5, n], log likelihood of the hypotheses from training rows of the query's kernel
    Queries without a source come out with NaN work.
    """
    precision = spread**-2.0
    total = segment_sum(precision, query, n)
    share = precision / total[query]
    mean = segment_sum(pairs.log_work * share, query, n)
    log_weight = segment_sum(pairs.log_prior * share, query, n) + learned
    if len(query) > n:
        disagreement = segment_sum((pairs.log_work - mean[:, query]) ** 2 / spread**2, query, n)
        log_weight = log_weight - 0.5 * disagreement
    weight = np.exp(log_weight - log_weight.max(axis=0))
    return Mixture(mean, weight / weight.sum(axis=0))


def source_spread(relation: Ints, ops: OpTable, i: Ints, evidence: Evidence) -> Floats:
    """Spread of every pair's answer, float64 [m], from its relation and its distance in lane operations."""
    rows = np.arange(len(evidence))
    distance = np.log(lane_operations(ops, i[evidence.query]) / lane_operations(evidence.rows.ops, rows))
    spread: Floats = np.hypot(_SPREAD[relation], _SPREAD_PER_LOG_WORK * distance)
    return spread
