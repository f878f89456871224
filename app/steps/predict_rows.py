"""Predict operators on several GPUs, including collectives over several nodes; predictors only cover one node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from app.engine.engine import Engine
from app.graphs.run import Parallelism
from app.predictors.priors import IS_COLLECTIVE
from app.steps.internode_collectives import Across, in_racks, over_nodes, within_nodes
from app.tables.arrays import Floats, Ints
from app.tables.gpus import MOST_IN_A_MACHINE, GpuTable
from app.tables.ops import OpTable
from app.tables.predictions import COMMUNICATION, EXTRAPOLATED, MEASURED, Predictions

# Most rows predicted at once, whose columns fit the cache; no power of two, which would map them to the same lines.
CHUNK = 16_000
# Default network bandwidth per device, bytes per second.
USUAL_BYTES_PER_S = Parallelism().network_bytes_per_s


def predict_on(
    engine: Engine,
    ops: OpTable,
    gpus: GpuTable,
    targets: Sequence[int],
    *,
    predictor: str,
    coverage: float,
    network_bytes_per_s: float = USUAL_BYTES_PER_S,
) -> Predictions:
    """Return the answers of n rows on GPU rows `targets`, GPU by GPU, with internode collectives over the network.

    Their intervals keep their relative width, and stay above the hardware limit. Measured rows are not changed.
    """
    query = OperatorQuery(engine, ops, gpus, predictor, coverage, network_bytes_per_s)
    if not IS_COLLECTIVE[ops.kind].any():
        return query.predict_within(ops, targets)
    joined = gpus.column("link_domain_gpus")[np.array(targets, dtype=np.intp)]
    racked = joined > MOST_IN_A_MACHINE
    if not racked.any():
        return query.predict(ops, targets)
    joined = np.where(racked, joined, 0.0)
    sizes = np.unique(joined).tolist()
    places = [np.flatnonzero(joined == size) for size in sizes]
    parts = [
        query.predict(in_racks(ops, size) if size else ops, [targets[k] for k in mine.tolist()])
        for size, mine in zip(sizes, places, strict=True)
    ]
    back = np.argsort(np.concatenate(places))[:, None] * len(ops) + np.arange(len(ops))
    columns = (
        np.concatenate([getattr(part, name) for part in parts])[back.ravel()]
        for name in Predictions.__dataclass_fields__
    )
    return Predictions(*columns)


class QueryParts(NamedTuple):
    """Rows on one GPU as sent to the predictor, and the internode parts that `predict_on` added.

    ops      the n rows; of collectives over several nodes the part within one
    answer   the predictor's answer for them
    several  int [m], rows over several nodes, except measured ones
    nodes    float64 [m], number of nodes, or racks, of each
    across   internode parts of these rows, [m, 1]
    """

    ops: OpTable
    answer: Predictions
    several: Ints
    nodes: Floats
    across: Across


def _several(ops: OpTable) -> Ints:
    """Return rows of collectives over several nodes; tables without collectives lack that column."""
    collective = IS_COLLECTIVE[ops.kind]
    return np.flatnonzero(collective & (ops.column("nodes") > 1.0)) if collective.any() else np.flatnonzero(collective)


class OperatorQuery(NamedTuple):
    """A query of operators on any GPUs; `requested` are the rows as in the request, to look up measured times."""

    engine: Engine
    requested: OpTable
    gpus: GpuTable
    predictor: str
    coverage: float
    network_bytes_per_s: float = USUAL_BYTES_PER_S

    def predict_within(self, ops: OpTable, targets: Sequence[int], requested: OpTable | None = None) -> Predictions:
        """Return the predictors' answers within a node, GPU by GPU; `requested` rows are looked up as measured."""
        i, j = np.tile(np.arange(len(ops)), len(targets)), np.repeat(np.array(targets, dtype=np.intp), len(ops))
        return self.engine.predict_with_hits(
            ops, self.gpus, i, j, predictor=self.predictor, coverage=self.coverage, requested=requested
        )

    def predict(self, ops: OpTable, targets: Sequence[int]) -> Predictions:
        """Return the answers, with collectives over several nodes timed over the network."""
        answer = self.predict_within(ops, targets, self.requested)
        rows = _several(ops)
        if not len(rows):
            return answer
        internode = ops.take(rows)
        seconds = self.across(internode, self.predict_within(within_nodes(internode), targets), targets).seconds.T
        apart = np.arange(len(targets))[:, None] * len(ops) + rows
        return _replace_times(answer, apart.ravel(), seconds.ravel())

    def parts(self, answer: Predictions, target: int) -> QueryParts:
        """Return the parts of `answer` [n], which `predict_on` gave for GPU row `target`."""
        ops = self.requested
        joined = float(self.gpus.column("link_domain_gpus")[target])
        if joined > MOST_IN_A_MACHINE and IS_COLLECTIVE[ops.kind].any():
            ops = in_racks(ops, joined)
        several = _several(ops)
        several = several[answer.support[several] != MEASURED]
        if not len(several):
            return QueryParts(ops, answer, several, np.empty(0), Across(*np.empty((3, 0, 1))))
        internode, dims = ops.take(several), ops.dims.copy()
        inside = within_nodes(internode)
        within = self.predict_within(inside, [target])
        dims[:, several] = inside.dims
        columns = {name: getattr(answer, name).copy() for name in Predictions.__dataclass_fields__}
        for name, column in columns.items():
            column[several] = getattr(within, name)
        across = self.across(internode, within, [target])
        return QueryParts(replace(ops, dims=dims), Predictions(**columns), several, internode.column("nodes"), across)

    def across(self, internode: OpTable, within: Predictions, targets: Sequence[int]) -> Across:
        """Return the parts of collectives over several nodes, from the answers `within` a node, GPU by GPU."""
        linked = np.isfinite(self.gpus.column("link_bandwidth_bytes_per_s")[np.array(targets, dtype=np.intp)])
        within_s = np.where(linked, within.latency_s.reshape(len(targets), len(internode)).T, np.nan)
        return over_nodes(internode, within_s, self.network_bytes_per_s)


def _replace_times(answer: Predictions, rows: np.ndarray, seconds: np.ndarray) -> Predictions:
    """Return the answer with `rows` [m] at `seconds` [m], except measured rows."""
    predicted = answer.support[rows] != MEASURED
    rows, seconds = rows[predicted], seconds[predicted]
    before, limit = answer.latency_s[rows], answer.limit_s[rows]
    seconds = np.maximum(seconds, limit)
    factor = np.divide(seconds, before, out=np.ones_like(seconds), where=before > 0)
    changed = {
        "latency_s": seconds,
        "low_s": np.maximum(factor * answer.low_s[rows], limit),
        "high_s": factor * answer.high_s[rows],
        "bound": COMMUNICATION,
        "support": EXTRAPOLATED,
    }
    columns = {name: getattr(answer, name).copy() for name in changed}
    for name, column in columns.items():
        column[rows] = changed[name]
    return replace(answer, **columns)
