"""Answers for operators on many GPUs, collectives over several nodes among them: predictors know these within one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from app.engine.engine import Engine
from app.graphs.internode_collectives import Across, in_racks, over_nodes, within_nodes
from app.graphs.run import Parallelism
from app.predictors.priors import IS_COLLECTIVE
from app.services.operators.answers import answered
from app.tables.arrays import Floats, Ints
from app.tables.gpus import MOST_IN_A_MACHINE, GpuTable
from app.tables.ops import OpTable
from app.tables.predictions import COMMUNICATION, EXTRAPOLATED, MEASURED, Predictions

# What a device can send to other nodes where a request has no say in it.
USUAL_BYTES_PER_S = Parallelism().network_bytes_per_s


def answered_on(
    engine: Engine,
    ops: OpTable,
    gpus: GpuTable,
    targets: Sequence[int],
    *,
    predictor: str,
    coverage: float,
    network_bytes_per_s: float = USUAL_BYTES_PER_S,
) -> Predictions:
    """The n rows' answers on GPU rows `targets`, GPU by GPU, with collectives between nodes by the network.

    Their intervals keep their width relative to the middle, and none falls under the hardware limit. What was measured
    stays.
    """
    asking = Asking(engine, ops, gpus, predictor, coverage, network_bytes_per_s)
    if not IS_COLLECTIVE[ops.kind].any():
        return asking.within(ops, targets)
    joined = gpus.column("link_domain_gpus")[np.array(targets, dtype=np.intp)]
    racked = joined > MOST_IN_A_MACHINE
    if not racked.any():
        return asking.answered(ops, targets)
    joined = np.where(racked, joined, 0.0)
    sizes = np.unique(joined).tolist()
    places = [np.flatnonzero(joined == size) for size in sizes]
    parts = [
        asking.answered(in_racks(ops, size) if size else ops, [targets[k] for k in mine.tolist()])
        for size, mine in zip(sizes, places, strict=True)
    ]
    back = np.argsort(np.concatenate(places))[:, None] * len(ops) + np.arange(len(ops))
    columns = (
        np.concatenate([getattr(part, name) for part in parts])[back.ravel()]
        for name in Predictions.__dataclass_fields__
    )
    return Predictions(*columns)


class Asked(NamedTuple):
    """Rows on one GPU as its predictor was asked about them, and what `answered_on` made of its answers.

    ops      the n rows, of collectives over several nodes the part that one of these runs
    answer   of these n rows
    several  int [m], which are over several nodes, but for those that were measured so
    nodes    float64 [m], how many nodes, or racks, each of these is over
    across   the parts of these, [m, 1]
    """

    ops: OpTable
    answer: Predictions
    several: Ints
    nodes: Floats
    across: Across


def _several(ops: OpTable) -> Ints:
    """Rows of collectives over several nodes; none of a table without collectives, which has no such column."""
    collective = IS_COLLECTIVE[ops.kind]
    return np.flatnonzero(collective & (ops.column("nodes") > 1.0)) if collective.any() else np.flatnonzero(collective)


class Asking(NamedTuple):
    """What is asked, whatever the GPUs: `said` are the rows as the caller has them, which may have been measured so."""

    engine: Engine
    said: OpTable
    gpus: GpuTable
    predictor: str
    coverage: float
    network_bytes_per_s: float = USUAL_BYTES_PER_S

    def within(self, ops: OpTable, targets: Sequence[int], said: OpTable | None = None) -> Predictions:
        """Answers of predictors, GPU by GPU; what was measured counts of the rows as `said`."""
        i, j = np.tile(np.arange(len(ops)), len(targets)), np.repeat(np.array(targets, dtype=np.intp), len(ops))
        return answered(self.engine, ops, self.gpus, i, j, predictor=self.predictor, coverage=self.coverage, said=said)

    def answered(self, ops: OpTable, targets: Sequence[int]) -> Predictions:
        """The same with collectives over several nodes by the network."""
        answer = self.within(ops, targets, self.said)
        rows = _several(ops)
        if not len(rows):
            return answer
        there = ops.take(rows)
        seconds = self.across(there, self.within(within_nodes(there), targets), targets).seconds.T
        apart = np.arange(len(targets))[:, None] * len(ops) + rows
        return _put(answer, apart.ravel(), seconds.ravel())

    def made_of(self, answer: Predictions, target: int) -> Asked:
        """What `answer` [n], of `answered_on` on GPU row `target`, was made of."""
        ops = self.said
        joined = float(self.gpus.column("link_domain_gpus")[target])
        if joined > MOST_IN_A_MACHINE and IS_COLLECTIVE[ops.kind].any():
            ops = in_racks(ops, joined)
        several = _several(ops)
        several = several[answer.support[several] != MEASURED]
        if not len(several):
            return Asked(ops, answer, several, np.empty(0), Across(*np.empty((3, 0, 1))))
        there, dims = ops.take(several), ops.dims.copy()
        inside = within_nodes(there)
        near = self.within(inside, [target])
        dims[:, several] = inside.dims
        columns = {name: getattr(answer, name).copy() for name in Predictions.__dataclass_fields__}
        for name, column in columns.items():
            column[several] = getattr(near, name)
        across = self.across(there, near, [target])
        return Asked(replace(ops, dims=dims), Predictions(**columns), several, there.column("nodes"), across)

    def across(self, there: OpTable, near: Predictions, targets: Sequence[int]) -> Across:
        """The parts of collectives over several nodes, of which predictors say `near` within them, GPU by GPU."""
        linked = np.isfinite(self.gpus.column("link_bandwidth_bytes_per_s")[np.array(targets, dtype=np.intp)])
        within = np.where(linked, near.latency_s.reshape(len(targets), len(there)).T, np.nan)
        return over_nodes(there, within, self.network_bytes_per_s)


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
