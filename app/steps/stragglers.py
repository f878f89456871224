"""How much longer the slowest of several equal devices takes, which synchronous training waits for."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from app.graphs.run import Run
from app.ops import OP_CODE, OPS
from app.ops.network import NETWORK
from app.predictors.priors import SENDS
from app.tables.arrays import Floats
from app.tables.workload import Workload

# Standard deviation of the speed of equal GPUs: Sinha et al. (SC 2022) find those of a cluster 8 % apart on average,
# taken for two standard deviations either way.
_SPREAD = 0.02
# Operators whose measured times have waited for all devices already, by code into OPS.
_TOGETHER = SENDS | (np.arange(len(OPS)) == OP_CODE[NETWORK.name])


def slowest_of(devices: int) -> float:
    """Return the expected time of the slowest of `devices` over the mean, for normal times (Blom's approximation)."""
    return 1.0 + _SPREAD * NormalDist().inv_cdf((devices - 0.375) / (devices + 0.25))


def in_step(w: Workload, latency_s: Floats, run: Run) -> Floats:
    """Return the rows' times [n, g] on the slowest device of training; collectives and networks are measured on all."""
    if run.mode != "training" or run.parallelism.devices == 1:
        return latency_s
    slowest = np.where(_TOGETHER[w.ops.kind], 1.0, slowest_of(run.parallelism.devices))
    return latency_s * slowest[:, None]
