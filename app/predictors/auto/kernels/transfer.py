"""Transfer of measured launches to other GPUs, sizes and kernels: a mixture over bottlenecks.

Under the hypothesis that one bottleneck limits a kernel, each measurement determines that bottleneck's cost and so
predicts the query. A hypothesis' weight is a prior from the launch's description, times the agreement of the sources
under it, times its likelihood on training rows of the same kernel. The prediction is the weighted geometric mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from app.coefficients import Coefficients
from app.ops.kernel import MECHANISMS
from app.runtime.compiled import compiled, compiled_per_row
from app.tables.arrays import Floats

_FITTED = Coefficients("launches")

# Launch floor of an unmeasured GPU, seconds: empty kernels take 2 to 5 us on NVIDIA GPUs since 2015.
FLOOR_S = _FITTED.number("floor_s")
# Longest launch floor; some drivers and systems take twice as long.
LONGEST_FLOOR_S = _FITTED.number("longest_floor_s")
# Traffic becomes the bottleneck around `Shares.traffic` of the measured work, over this logistic width.
TRAFFIC_WIDTH = _FITTED.number("traffic_width")
# Prior of (latency, issue, arithmetic, serial) where traffic is not the bottleneck, by mechanism.
MECHANISM_PRIOR = np.array(_FITTED.rows("mechanism_prior"))
assert len(MECHANISM_PRIOR) == len(MECHANISMS)
LEAST_PRIOR = 1e-4
# Least share of the measured time that counts as work, whatever the launch floor.
LEAST_WORK = _FITTED.number("least_work")
# Log-space standard deviation of a source's answer by its relation (app.bands.groups.GROUPS, the weakest
# unused), and per unit of log distance in lane operations.
SPREAD = np.array(_FITTED.numbers("spread_of_relation"))
SPREAD_PER_LOG_SIZE = _FITTED.number("spread_per_log_size")
# Log-space standard deviation of one kernel's cost across GPUs under its true bottleneck.
AGREEMENT_SPREAD = _FITTED.number("agreement_spread")


@dataclass(frozen=True, slots=True)
class Shares:
    """Two parameters chosen by holding each GPU out.

    floor    part of the launch floor that adds to the work; the rest overlaps with it
    traffic  traffic over measured work at which traffic becomes the likely bottleneck
    """

    floor: float = 0.8
    traffic: float = 0.65


@compiled_per_row
def work_s(latency_s: float, floor_s: float, limit_s: float, floor_share: float) -> float:
    """Return the work in a measured time: without the launch floor, at least the hardware limit and 2 % of the time."""
    least = min(max(limit_s, LEAST_WORK * latency_s), latency_s)
    return float(max(latency_s - floor_share * floor_s, least))


@compiled_per_row
def time_s(work: float, floor_s: float, floor_share: float) -> float:
    """Return the time of work and launch floor: the inverse of `work_s`."""
    return float(max(floor_s, floor_share * floor_s + work))


@compiled_per_row
def carried(work: float, source: Floats, target: Floats, limit_s: float, log_work: Floats) -> None:
    """Fill `log_work` [5] with the target's log work under each hypothesis, from a source's work.

    source, target  float64 [5], unit times
    limit_s         the target's hardware limit, seconds

    Work scales with the bottleneck's unit time. It is at least the hardware limit and, under hypotheses other than
    traffic, at least the traffic's time.
    """
    for h in range(5):
        least = limit_s if h == 0 else max(target[0], limit_s)
        log_work[h] = np.log(max(work * target[h] / source[h], least))


@compiled_per_row
def traffic_probability(traffic_s: float, work: float, threshold: float) -> float:
    """Return the probability that traffic is the bottleneck, from its share of the work."""
    return float(1.0 / (1.0 + np.exp((threshold - traffic_s / work) / TRAFFIC_WIDTH)))


@compiled_per_row
def log_prior(mechanism: int, traffic: float, log_weight: Floats) -> None:
    """Fill `log_weight` [5] with the hypotheses' log prior, from the mechanism and the probability of traffic."""
    log_weight[0] = np.log(traffic + LEAST_PRIOR)
    for h in range(4):
        log_weight[1 + h] = np.log(MECHANISM_PRIOR[mechanism, h] * (1.0 - traffic) + LEAST_PRIOR)


@compiled
def normalise(log_weight: Floats, weight: Floats) -> None:
    """Fill `weight` with normalised exponentials of `log_weight`."""
    top = log_weight.max()
    total = 0.0
    for h in range(len(weight)):
        weight[h] = np.exp(log_weight[h] - top)
        total += weight[h]
    for h in range(len(weight)):
        weight[h] /= total


@compiled
def works_s(latency_s: Floats, floor_s: Floats, limit_s: Floats, floor_share: float) -> Floats:
    """Return `work_s` of m rows, float64 [m]."""
    work = np.empty(len(latency_s))
    for k in range(len(work)):
        work[k] = work_s(latency_s[k], floor_s[k], limit_s[k], floor_share)
    return work


@compiled
def all_carried(work: Floats, source: Floats, target: Floats, limit_s: Floats) -> Floats:
    """Return `carried` of m pairs, float64 [5, m]; `source` and `target` are unit times [5, m]."""
    log_work = np.empty((len(work), 5))
    for k in range(len(work)):
        carried(work[k], source[:, k], target[:, k], limit_s[k], log_work[k])
    return log_work.T
