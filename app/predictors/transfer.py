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

from app.ops.kernel import FIELD_INDEX, MECHANISMS
from app.predictors.bottlenecks import Bottlenecks
from app.tables.ops import OpTable

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

# A launch's fixed cost where its GPU was never measured: empty kernels take 2 to 5 us on NVIDIA GPUs since 2015.
FLOOR_S = 4e-6
# Traffic becomes the bottleneck around `Shares.traffic` of the measured work, over this logistic width.
TRAFFIC_WIDTH = 0.08
# Prior of (latency, issue, arithmetic, serial) where traffic is not the bottleneck, by mechanism.
_MECHANISM_PRIOR = np.array(
    [
        [0.85, 0.10, 0.05, 1e-4],  # operands
        [0.10, 0.60, 0.30, 1e-4],  # loops
        [0.02, 0.10, 0.02, 0.86],  # serial
    ]
).T
assert _MECHANISM_PRIOR.shape[1] == len(MECHANISMS)
_LEAST_PRIOR = 1e-4
# Measured time that is work at least, whatever the launch floor.
_LEAST_WORK = 0.02
# Log-space spread of a source's answer by its relation (app.predictors.intervals.GROUPS, the weakest unused),
# and per unit of log distance in lane operations: sizes far apart say less.
_SPREAD = np.array([0.03, 0.10, 0.20, 0.25, 0.60, 1.0])
_SPREAD_PER_LOG_SIZE = 0.3
# Spread of one kernel's true cost about a true bottleneck, across GPUs.
AGREEMENT_SPREAD = 0.2

_MECHANISM, _LANES = FIELD_INDEX["mechanism"], FIELD_INDEX["lane_operations"]


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
    prior: Floats = _MECHANISM_PRIOR[:, ops.dims[_MECHANISM, i].astype(np.intp)]
    return prior


def hypothesis_prior(mechanisms: Floats, traffic: Floats) -> Floats:
    """Log prior of BOTTLENECKS, float64 [5, n], from mechanism prior [4, n] and probability of traffic [n]."""
    prior = np.empty((5, len(traffic)))
    prior[0] = traffic
    prior[1:] = mechanisms * (1.0 - traffic)
    log_prior: Floats = np.log(prior + _LEAST_PRIOR)
    return log_prior


def work_s(latency_s: Floats, floor_s: Floats, limit_s: Floats, shares: Shares) -> Floats:
    """Measured time less the launch floor, float64 [m]: never under the hardware limit, nor under 2 %."""
    least = np.minimum(np.maximum(limit_s, _LEAST_WORK * latency_s), latency_s)
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
    scaled = work * target.unit_s / source.unit_s
    np.maximum(scaled[0], target.limit_s, out=scaled[0])
    np.maximum(scaled[1:], np.maximum(target.unit_s[0], target.limit_s), out=scaled[1:])
    traffic = 1.0 / (1.0 + np.exp((shares.traffic - source.unit_s[0] / work) / TRAFFIC_WIDTH))
    return Transferred(np.log(scaled), hypothesis_prior(mechanisms, traffic))


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

    @property
    def mean(self) -> Floats:
        """Weighted mean of the log work, float64 [n]."""
        mean: Floats = (self.weight * self.log_work).sum(axis=0)
        return mean


def normalised(log_work: Floats, log_weight: Floats) -> Mixture:
    """A mixture from log weights [5, n] that are not normalised."""
    weight = np.exp(log_weight - log_weight.max(axis=0))
    weight /= weight.sum(axis=0)
    return Mixture(log_work, weight)


def mix(pairs: Transferred, spread: Floats, query: Ints, n: int) -> Transferred:
    """Combine the sources of every query into one answer per query; NaN for a query without a source.

    spread   float64 [m], log-space spread of every source's answer
    """
    if len(query) == n == 1:
        return pairs
    precision = spread**-2.0
    total = segment_sum(precision, query, n)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = segment_sum(pairs.log_work * precision, query, n) / total
        log_prior = segment_sum(pairs.log_prior * precision, query, n) / total
    disagreement = segment_sum((pairs.log_work - mean[:, query]) ** 2 * precision, query, n)
    return Transferred(mean, log_prior - 0.5 * disagreement)


def source_spread(relation: Ints, sources: OpTable, queries: OpTable) -> Floats:
    """Spread of every pair's answer, float64 [m], from its relation and its distance in lane operations."""
    distance = np.log(queries.dims[_LANES] / sources.dims[_LANES])
    spread: Floats = np.hypot(_SPREAD[relation], _SPREAD_PER_LOG_SIZE * distance)
    return spread
