"""What training rows teach `auto`: launch floors, each kernel's mechanism, and its cost of every bottleneck."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from app.ops.kernel import FIELD_INDEX
from app.predictors.auto.kernels.bottlenecks import Bottlenecks, bottlenecks
from app.predictors.auto.kernels.transfer import (
    AGREEMENT_SPREAD,
    FLOOR_S,
    MECHANISM_PRIOR,
    Shares,
    all_carried,
    works_s,
)
from app.tables.gpus import GpuTable
from app.tables.measurements import Measurements

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

# Costs of a kernel that nobody measured, in cycles per lane operation (traffic: times its streaming time):
# an L1 hit takes some 30 cycles and an L2 hit some 200; an SM issues 4 warps of 32 lanes a cycle, one in four
# of them a lane operation; a lane's loop takes some 4 instructions a step; and an L2 slice retires about 32
# aggregated atomics on one address a cycle.
PRIOR_COST = np.array([1.1, 100.0, 1 / 32, 4.0, 1 / 32])
# Rows teach the mechanism in pairs on two GPUs whose lane operations differ by at most this factor.
LIKE_SIZED = 2.0
# A GPU's shortest times are its launch floor when at least this many rows lie within a fifth of the shortest.
_FLOOR_ROWS, _FLOOR_BAND = 3, 1.2
# Ridge of the cost fit, as a share of the rows' weight: what the rows cannot tell apart shares the cost.
_RIDGE = 0.1
_LANES, _MECHANISM = FIELD_INDEX["lane_operations"], FIELD_INDEX["mechanism"]
# Rows of one kernel that form pairs at most; beyond it pairs teach nothing new and grow with the square.
_PAIRED_ROWS = 64


@dataclass(frozen=True, slots=True)
class KernelKnowledge:
    """Training rows condensed per kernel, L kernels.

    label  int [L], sorted
    log_likelihood  float64 [5, L] of the bottleneck hypotheses
    cost   float64 [5, L], fitted costs
    """

    label: Ints
    log_likelihood: Floats
    cost: Floats

    @classmethod
    def none(cls) -> Self:
        """Nothing measured yet."""
        return cls(np.empty(0, dtype=np.intp), np.empty((5, 0)), np.empty((5, 0)))


def launch_floors(measurements: Measurements, gpus: GpuTable) -> dict[str, float]:
    """Launch floor of every GPU with rows, seconds, by id."""
    floors = {}
    for gpu in np.unique(measurements.gpu):
        times = measurements.latency_s[measurements.gpu == gpu]
        shortest = float(times.min())
        seen = np.count_nonzero(times < _FLOOR_BAND * shortest) >= _FLOOR_ROWS
        floors[gpus.ids[gpu]] = shortest if seen else min(shortest, FLOOR_S)
    return floors


def like_pairs(measurements: Measurements) -> tuple[Ints, Ints]:
    """(source, target) rows of one kernel on two GPUs, alike in size."""
    lanes = np.log(measurements.ops.dims[_LANES])
    sources, targets = [np.empty(0, dtype=np.intp)], [np.empty(0, dtype=np.intp)]
    for label in np.unique(measurements.ops.label):
        rows = np.flatnonzero(measurements.ops.label == label)[:_PAIRED_ROWS]
        source, target = (side.ravel() for side in np.meshgrid(rows, rows, indexing="ij"))
        alike = np.abs(lanes[source] - lanes[target]) < np.log(LIKE_SIZED)
        alike &= measurements.gpu[source] != measurements.gpu[target]
        sources.append(source[alike])
        targets.append(target[alike])
    return np.concatenate(sources), np.concatenate(targets)


def fit_costs(unit_s: Floats, work: Floats, latency_s: Floats) -> Floats:
    """Costs [5] of one kernel: work = sum of cost x unit time, non-negative, least squares on relative error.

    From unit times [5, m], work [m] and measured time [m], seconds.
    """
    from scipy.optimize import nnls  # noqa: PLC0415  (serving never fits)

    weighted = (unit_s / latency_s).T
    scale = np.maximum(np.sqrt((weighted**2).mean(axis=0)), 1e-30)
    ridge = _RIDGE * np.sqrt(len(latency_s)) * np.eye(len(scale))
    costs, _ = nnls(np.vstack([weighted / scale, ridge]), np.concatenate([work / latency_s, np.zeros(len(scale))]))
    fitted: Floats = costs / scale
    return fitted


def learn_kernels(
    measurements: Measurements, gpus: GpuTable, floor_s: Floats, shares: Shares
) -> tuple[KernelKnowledge, Floats]:
    """Knowledge of every kernel in the rows, and the mean cost [5] of a kernel that is not among them."""
    rows = np.arange(len(measurements))
    units = bottlenecks(measurements.ops, gpus, rows, measurements.gpu)
    work = works_s(measurements.latency_s, floor_s, units.limit_s, shares.floor)
    errors, paired = _squared_errors(measurements, units, work)
    labels = np.unique(measurements.ops.label)
    likelihood = np.zeros((5, len(labels)))
    cost = np.zeros((5, len(labels)))
    for column, label in enumerate(labels):
        mine = measurements.ops.label == label
        if (pairs := paired == label).any():
            # Rows of one GPU err together: a kernel seen on k GPUs is k - 1 independent comparisons.
            compared = len(np.unique(measurements.gpu[mine])) - 1
            likelihood[:, column] = -compared * errors[:, pairs].mean(axis=1) / (2 * AGREEMENT_SPREAD**2)
        cost[:, column] = fit_costs(units.unit_s[:, mine], work[mine], measurements.latency_s[mine])
    return KernelKnowledge(labels, likelihood, cost), _mean_cost(measurements, units, work, labels, likelihood)


def _squared_errors(measurements: Measurements, units: Bottlenecks, work: Floats) -> tuple[Floats, Ints]:
    """Squared log error of every hypothesis on pairs of rows, float64 [5, pairs], and each pair's label."""
    source, target = like_pairs(measurements)
    log_work = all_carried(work[source], units.unit_s[:, source], units.unit_s[:, target], units.limit_s[target])
    return (log_work - np.log(work[target])) ** 2, measurements.ops.label[source]


def _mean_cost(
    measurements: Measurements, units: Bottlenecks, work: Floats, labels: Ints, likelihood: Floats
) -> Floats:
    """Cost [5] of an unmeasured kernel: the kernels' log mean, each weighted by how likely the bottleneck is its own.

    The documented prior is one more kernel; rows half full of traffic say nothing of the SMs.
    """
    prior = MECHANISM_PRIOR[measurements.ops.dims[_MECHANISM].astype(np.intp)].T
    column = np.searchsorted(labels, measurements.ops.label)
    per_row = 1.0 / np.bincount(column)[column]
    log_posterior = likelihood[1:, column] + np.log(prior)
    posterior = np.exp(log_posterior - log_posterior.max(axis=0))
    posterior *= (units.unit_s[0] < 0.5 * work) * per_row / posterior.sum(axis=0)
    log_cost = np.log(work / units.unit_s[1:])
    cost = PRIOR_COST.copy()
    cost[1:] = np.exp(((posterior * log_cost).sum(axis=1) + np.log(PRIOR_COST[1:])) / (posterior.sum(axis=1) + 1.0))
    return cost
