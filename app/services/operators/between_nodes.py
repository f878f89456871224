"""Predictions of collectives over several nodes: predictors know them within one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from app.graphs.collectives import over_nodes
from app.graphs.run import Parallelism
from app.ops import OPS
from app.tables.gpus import GpuTable
from app.tables.ops import OpTable
from app.tables.predictions import COMMUNICATION, EXTRAPOLATED, MEASURED, Predictions

_COLLECTIVES = np.array([op.group == "collective" for op in OPS])
# What a device can send to other nodes where a request has no say in it.
_USUAL = Parallelism().network_bytes_per_s


def between_nodes(
    answer: Predictions,
    ops: OpTable,
    gpus: GpuTable,
    targets: Sequence[int],
    network_bytes_per_s: float = _USUAL,
) -> Predictions:
    """The n rows' answers on GPU rows `targets`, GPU by GPU, with collectives between nodes by the network.

    Their intervals keep their width relative to the middle, and none falls under the hardware limit. What was measured
    stays.
    """
    several = _COLLECTIVES[ops.kind]
    if not several.any():
        return answer
    several &= ops.column("nodes") > 1.0
    apart = np.tile(several, len(targets)) & (answer.support != MEASURED)
    if not apart.any():
        return answer
    links = gpus.column("link_bandwidth_bytes_per_s")[np.array(targets, dtype=np.intp)]
    table = answer.latency_s.reshape(len(targets), len(ops)).T
    seconds = over_nodes(ops, table, links, network_bytes_per_s).T.ravel()
    seconds = np.where(apart, np.maximum(seconds, answer.limit_s), answer.latency_s)
    factor = np.divide(seconds, answer.latency_s, out=np.ones_like(seconds), where=answer.latency_s > 0)
    low = np.maximum(factor * answer.low_s, answer.limit_s)
    return replace(
        answer,
        latency_s=seconds,
        low_s=low,
        high_s=factor * answer.high_s,
        bound=np.where(apart, COMMUNICATION, answer.bound),
        support=np.where(apart, EXTRAPOLATED, answer.support),
    )
