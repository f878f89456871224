"""Answers for operators on many GPUs, collectives over several nodes among them: predictors know these within one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from app.graphs.collectives import over_nodes, within_nodes
from app.graphs.run import Parallelism
from app.ops import OPS
from app.services.engine import Engine
from app.services.operators.answers import answered
from app.tables.gpus import GpuTable
from app.tables.ops import OpTable
from app.tables.predictions import COMMUNICATION, EXTRAPOLATED, MEASURED, Predictions

_COLLECTIVES = np.array([op.group == "collective" for op in OPS])
# What a device can send to other nodes where a request has no say in it.
_USUAL = Parallelism().network_bytes_per_s


def answered_on(
    engine: Engine,
    ops: OpTable,
    gpus: GpuTable,
    targets: Sequence[int],
    *,
    predictor: str,
    coverage: float,
    network_bytes_per_s: float = _USUAL,
) -> Predictions:
    """The n rows' answers on GPU rows `targets`, GPU by GPU, with collectives between nodes by the network.

    Their intervals keep their width relative to the middle, and none falls under the hardware limit. What was measured
    stays.
    """

    def asked(rows: OpTable) -> Predictions:
        i, j = np.tile(np.arange(len(rows)), len(targets)), np.repeat(np.array(targets, dtype=np.intp), len(rows))
        return answered(engine, rows, gpus, i, j, predictor=predictor, coverage=coverage)

    answer = asked(ops)
    several = _COLLECTIVES[ops.kind]
    if not several.any():
        return answer
    rows = np.flatnonzero(several & (ops.column("nodes") > 1.0))
    if not len(rows):
        return answer
    there = ops.take(rows)
    within = asked(within_nodes(there)).latency_s.reshape(len(targets), len(rows)).T
    linked = np.isfinite(gpus.column("link_bandwidth_bytes_per_s")[np.array(targets, dtype=np.intp)])
    apart = np.arange(len(targets))[:, None] * len(ops) + rows
    seconds = over_nodes(there, np.where(linked, within, np.nan), network_bytes_per_s).T
    return _put(answer, apart.ravel(), seconds.ravel())


def _put(answer: Predictions, rows: np.ndarray, seconds: np.ndarray) -> Predictions:
    """The answer with `rows` [m] at `seconds` [m], but those that were measured."""
    predicted = answer.support[rows] != MEASURED
    rows, seconds = rows[predicted], seconds[predicted]
    before, limit = answer.latency_s[rows], answer.limit_s[rows]
    seconds = np.maximum(seconds, limit)
    factor = np.divide(seconds, before, out=np.ones_like(seconds), where=before > 0)
    put = {
        "latency_s": seconds,
        "low_s": np.maximum(factor * answer.low_s[rows], limit),
        "high_s": factor * answer.high_s[rows],
        "bound": COMMUNICATION,
        "support": EXTRAPOLATED,
    }
    columns = {name: getattr(answer, name).copy() for name in put}
    for name, column in columns.items():
        column[rows] = put[name]
    return replace(answer, **columns)
