"""Predictions of collectives over several nodes: predictors know them within one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from app.graphs.collectives import over_nodes
from app.graphs.run import Run
from app.tables.gpus import GpuTable
from app.tables.ops import OpTable
from app.tables.predictions import Predictions


def between_nodes(answer: Predictions, ops: OpTable, gpus: GpuTable, targets: Sequence[int], run: Run) -> Predictions:
    """The n rows' answers on GPU rows `targets`, GPU by GPU, with collectives between nodes by the network.

    Their intervals keep their width relative to the middle, and none falls under the hardware limit.
    """
    if not (ops.column("nodes") > 1.0).any():
        return answer
    links = gpus.column("link_bandwidth_bytes_per_s")[np.array(targets, dtype=np.intp)]
    table = answer.latency_s.reshape(len(targets), len(ops)).T
    seconds = over_nodes(ops, table, links, run.parallelism.network_bytes_per_s).T.ravel()
    seconds = np.maximum(seconds, answer.limit_s)
    factor = np.divide(seconds, answer.latency_s, out=np.ones_like(seconds), where=answer.latency_s > 0)
    low = np.maximum(factor * answer.low_s, answer.limit_s)
    return replace(answer, latency_s=seconds, low_s=low, high_s=factor * answer.high_s)
