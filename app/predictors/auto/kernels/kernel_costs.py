"""Fit of `auto` for kernels: launch floors, and each kernel's mechanism and bottleneck costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from app.coefficients import Coefficients
from app.ops.kernel import FIELD_INDEX
from app.predictors.auto.kernels.bottlenecks import (
    AGREEMENT_SPREAD,
    FLOOR_S,
    MECHANISM_PRIOR,
    Bottlenecks,
    Shares,
    all_carried,
    bottlenecks,
    works_s,
)
from app.tables.arrays import Floats, Ints
from app.tables.gpus import GpuTable
from app.tables.measurements import Measurements

_FITTED = Coefficients("launches")

# Costs of an unmeasured kernel, in cycles per lane operation (traffic: multiples of its streaming time). An L1 hit
# takes some 30 cycles and an L2 hit some 200; an SM issues 4 warps of 32 lanes per cycle, one in four a lane operation;
# a lane's loop takes some 4 instructions per step; an L2 slice retires about 32 atomics on one address per cycle.
PRIOR_COST = np.array(_FITTED.numbers("prior_cost"))
# The mechanism is fitted to pairs of rows on two GPUs whose lane operations differ by at most this factor.
MAX_SIZE_RATIO = _FITTED.number("largest_size_ratio")
# A GPU's shortest time is its launch floor if at least this many rows are within this factor of it.
_FLOOR_ROWS, _FLOOR_BAND = 3, 1.2
# Ridge of the cost fit, as a share of the rows' weight: costs that the rows do not identify are shared.
_RIDGE = _FITTED.number("cost_ridge")
_LANES, _MECHANISM = FIELD_INDEX["lane_operations"], FIELD_INDEX["mechanism"]
# Most rows of one kernel that form pairs: the number of pairs grows with the square.
_PAIRED_ROWS = 64


@dataclass(frozen=True, slots=True)
class KernelCosts:
    """Fitted figures of L trained kernels.

    label  int [L], sorted
    log_likelihood  float64 [5, L] of the bottleneck hypotheses
    cost   float64 [5, L], fitted costs
    """

    label: Ints
    log_likelihood: Floats
    cost: Floats

    @classmethod
    def none(cls) -> Self:
        """Return the costs of no kernels."""
        return cls(np.empty(0, dtype=np.intp), np.empty((5, 0)), np.empty((5, 0)))


def launch_floors(measurements: Measurements, gpus: GpuTable) -> dict[str, float]:
    """Return the launch floor of every measured GPU, seconds, by id."""
    floors = {}
    for gpu in np.unique(measurements.gpu):
        times = measurements.latency_s[measurements.gpu == gpu]
        shortest = float(times.min())
        seen = np.count_nonzero(times < _FLOOR_BAND * shortest) >= _FLOOR_ROWS
        floors[gpus.ids[gpu]] = shortest if seen else min(shortest, FLOOR_S)
    return floors


def comparable_pairs(measurements: Measurements) -> tuple[Ints, Ints]:
    """Return (source, target) rows of one kernel on two GPUs, of comparable size."""
    lanes = np.log(measurements.ops.dims[_LANES])
    sources, targets = [np.empty(0, dtype=np.intp)], [np.empty(0, dtype=np.intp)]
    for label in np.unique(measurements.ops.label):
        rows = np.flatnonzero(measurements.ops.label == label)[:_PAIRED_ROWS]
        source, target = (side.ravel() for side in np.meshgrid(rows, rows, indexing="ij"))
        comparable = np.abs(lanes[source] - lanes[target]) < np.log(MAX_SIZE_RATIO)
        comparable &= measurements.gpu[source] != measurements.gpu[target]
        sources.append(source[comparable])
        targets.append(target[comparable])
    return np.concatenate(sources), np.concatenate(targets)


def fit_costs(unit_s: Floats, work: Floats, latency_s: Floats) -> Floats:
    """Return the costs [5] of one kernel: work = sum of cost x unit time, by non-negative least squares.

    unit_s, work, latency_s  float64 [5, m], [m], [m]: unit times, work and measured times, seconds

    Errors are relative to the measured time.
    """
    from scipy.optimize import nnls  # noqa: PLC0415  (serving never fits)

    weighted = (unit_s / latency_s).T
    scale = np.maximum(np.sqrt((weighted**2).mean(axis=0)), 1e-30)
    ridge = _RIDGE * np.sqrt(len(latency_s)) * np.eye(len(scale))
    costs, _ = nnls(np.vstack([weighted / scale, ridge]), np.concatenate([work / latency_s, np.zeros(len(scale))]))
    fitted: Floats = costs / scale
    return fitted


def fit_kernels(
    measurements: Measurements, gpus: GpuTable, floor_s: Floats, shares: Shares
) -> tuple[KernelCosts, Floats]:
    """Return the costs of every measured kernel, and the mean cost [5] for other kernels."""
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
            # Errors of one GPU's rows are correlated: k GPUs give k - 1 independent comparisons.
            compared = len(np.unique(measurements.gpu[mine])) - 1
            likelihood[:, column] = -compared * errors[:, pairs].mean(axis=1) / (2 * AGREEMENT_SPREAD**2)
        cost[:, column] = fit_costs(units.unit_s[:, mine], work[mine], measurements.latency_s[mine])
    return KernelCosts(labels, likelihood, cost), _mean_cost(measurements, units, work, floor_s, likelihood)


def _squared_errors(measurements: Measurements, units: Bottlenecks, work: Floats) -> tuple[Floats, Ints]:
    """Return the squared log error of every hypothesis on pairs of rows, float64 [5, pairs], and each pair's label."""
    source, target = comparable_pairs(measurements)
    log_work = all_carried(work[source], units.unit_s[:, source], units.unit_s[:, target], units.limit_s[target])
    return (log_work - np.log(work[target])) ** 2, measurements.ops.label[source]


def _mean_cost(
    measurements: Measurements, units: Bottlenecks, work: Floats, floor_s: Floats, likelihood: Floats
) -> Floats:
    """Return the costs [5] of an unmeasured kernel: the kernels' log mean, weighted by each bottleneck's probability.

    The documented prior counts as one kernel. Rows with traffic for over half their work do not count, nor those with
    launch for over half their time: what remains of an empty kernel's time is no cost of its lanes.
    """
    prior = MECHANISM_PRIOR[measurements.ops.dims[_MECHANISM].astype(np.intp)].T
    column = np.unique(measurements.ops.label, return_inverse=True)[1]
    per_row = 1.0 / np.bincount(column)[column]
    log_posterior = likelihood[1:, column] + np.log(prior)
    posterior = np.exp(log_posterior - log_posterior.max(axis=0))
    counts = (units.unit_s[0] < 0.5 * work) & (floor_s < 0.5 * measurements.latency_s)
    posterior *= counts * per_row / posterior.sum(axis=0)
    log_cost = np.log(work / units.unit_s[1:])
    cost = PRIOR_COST.copy()
    cost[1:] = np.exp(((posterior * log_cost).sum(axis=1) + np.log(PRIOR_COST[1:])) / (posterior.sum(axis=1) + 1.0))
    return cost
