"""Predict rows of a network on several GPUs, each by its quickest kernel, with collectives over several nodes.

Predictors cover collectives within a node, where they were measured; those over several follow alpha-beta models of
rings and trees (Thakur et al. 2005; NCCL's double trees). Over N nodes of L devices each (n = N L), a ring moves
S (n - 1) / n bytes over each link within a node and over the node's L network adapters together. Its time is the larger
of the node's own time for those bytes (`within_nodes`) and the adapters' time, plus latency: N hops between nodes and
the hops within the other nodes, twice for all_reduce; or, if shorter, a tree of log2 N levels that moves the same bytes
(NCCL picks the faster). all_to_all sends S / n to every other device: to other nodes through the device's own adapter,
concurrently within the node; of `copies` of an element each of the N (1 - (1 - 1 / N)^copies) nodes with any gets one.
send_recv passes S through the adapter. Machines joined by one link domain (a rack such as NVL72) count as one node,
several racks as several nodes.

A serving stack chooses among kernels. An all-reduce is the stack's own or the library's, by size. SGLang multiplies in
FP8 by blocks with DeepGEMM or with TensorRT-LLM's kernels from FlashInfer, by GPU
(srt/layers/quantization/fp8_utils.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import isqrt
from typing import NamedTuple

import numpy as np

from app.engine.engine import Engine
from app.networks.run import Parallelism
from app.ops import OP_CODE, OPS
from app.ops.collective import CUSTOM, NCCL
from app.ops.figures import Pattern
from app.predictors.links import over_link
from app.predictors.physics.conditions import on_host
from app.predictors.priors import IS_COLLECTIVE
from app.stacks.facts import Host, Link
from app.stacks.libraries import kernel_fact
from app.stacks.registry import code_of
from app.steps.run_formats import as_run
from app.tables.arrays import Bools, Floats, Ints
from app.tables.gpus import COLUMN_INDEX, MOST_IN_A_MACHINE, GpuTable
from app.tables.ops import DTYPE_CODE, OpTable, concatenate
from app.tables.predictions import COMMUNICATION, EXTRAPOLATED, MEASURED, Predictions

# Launch and protocol overhead, and a hop within a node: NCCL on eight A100, H100 and B200 (NVLink).
_BASE_S, _HOP_S = 9e-6, 1e-6
# A hop through adapters and switches, and the payload share of an adapter's bandwidth: InfiniBand, RoCE.
_NETWORK_HOP_S, _NETWORK_SHARE = 5e-6, 0.9


def in_racks(ops: OpTable, joined: float) -> OpTable:
    """Return the collectives with racks in place of nodes; `joined` devices share one link domain.

    Every rack holds equally many devices; at least one row is a collective.
    """
    rows = np.flatnonzero(IS_COLLECTIVE[ops.kind])
    n, spread = ops.column("devices")[rows], ops.column("spread")[rows]
    least = np.minimum(np.ceil(np.fmax(spread, n) / joined), n)
    (n, least), row = np.unique(np.array([n, least]), axis=1, return_inverse=True)
    racks = n
    for k in range(1, isqrt(int(n.max())) + 1):
        for divisor in (k, n / k):
            racks = np.where((n % k == 0.0) & (divisor >= least), np.minimum(racks, divisor), racks)
    dims = ops.dims.copy()
    dims[ops.fields["nodes"], rows] = racks[row.ravel()]
    return replace(ops, dims=dims)


def within_nodes(ops: OpTable) -> OpTable:
    """Return each collective's part within one node: as many bytes over each of the node's own links."""
    size, n, nodes = (ops.column(name) for name in ("message_bytes", "devices", "nodes"))
    each, dims = n / nodes, ops.dims.copy()
    sent = np.where(_IS_EXCHANGE[ops.kind], each / n, (n - 1.0) / n * each / np.maximum(each - 1.0, 1.0))
    dims[ops.fields["message_bytes"]] = np.maximum(size * sent, 1.0)
    dims[ops.fields["spread"]] /= nodes
    dims[ops.fields["devices"]], dims[ops.fields["nodes"]] = each, 1.0
    return replace(ops, dims=dims)


_IS_EXCHANGE = np.array([op.pattern == Pattern("exchange") for op in OPS])
_IS_SEND = np.array([op.pattern == Pattern("send") for op in OPS])


class Across(NamedTuple):
    """Parts of the time of collectives over several nodes, seconds, float64 [n, g] each.

    node      time of the part within a node; 0 where there is none
    adapters  launch overhead and the bytes through a node's network adapters, concurrent with `node`
    hops      latency at other nodes, in addition
    """

    node: Floats
    adapters: Floats
    hops: Floats

    @property
    def seconds(self) -> Floats:
        """Total time, seconds, float64 [n, g]."""
        whole: Floats = np.maximum(self.node, self.adapters) + self.hops
        return whole


def over_nodes(ops: OpTable, within_s: Floats, network_bytes_per_s: float) -> Across:
    """Return the parts of the time of collectives over several nodes.

    within_s             float64 [n, g], predicted seconds of `within_nodes` on each GPU; NaN for a GPU without a link,
                         whose bytes all pass through an adapter
    network_bytes_per_s  bandwidth of one adapter, one way
    """
    size, n, nodes = (ops.column(name)[:, None] for name in ("message_bytes", "devices", "nodes"))
    each = n / nodes
    adapter = _NETWORK_SHARE * network_bytes_per_s
    linked = np.isfinite(within_s)
    near = np.where((each > 1.0) & linked, within_s, 0.0)
    # Rings enter and leave a node through all of its adapters.
    moved = size * (n - 1.0) / n / (np.where(linked, each, 1.0) * adapter)
    ring = nodes * _NETWORK_HOP_S + (nodes - 1.0) * (each - 1.0) * _HOP_S
    tree = np.ceil(np.log2(nodes)) * _NETWORK_HOP_S
    away = _sent_away(ops)[:, None] / adapter + (nodes - 1.0) * _NETWORK_HOP_S
    once = Across(near, _BASE_S + moved, ring)
    parts = {
        Pattern("ring", 2): Across(near, _BASE_S + 2.0 * moved, 2.0 * np.minimum(ring, tree)),
        Pattern("ring", 1): once,
        # Devices send independently, so the node's sending overlaps the latency of messages.
        Pattern("exchange"): Across(near, _BASE_S + away, np.zeros_like(near)),
        Pattern("send"): Across(np.zeros_like(near), _BASE_S + size / adapter, np.full_like(near, _NETWORK_HOP_S)),
    }
    total = Across(*np.zeros((3, *near.shape)))
    for pattern, across in parts.items():
        rows = np.isin(ops.kind, [kind for kind, op in enumerate(OPS) if op.pattern == pattern])[:, None]
        if rows.any():
            total = Across(*(np.where(rows, part, rest) for part, rest in zip(across, total, strict=True)))
    return total


def _sent_away(ops: OpTable) -> Floats:
    """Return the bytes of exchanges that a device sends to other nodes, each copy of an element once to a node, [n]."""
    size, nodes = ops.column("message_bytes"), ops.column("nodes")
    # Tables without exchanges lack the column; of other collectives it is NaN.
    copies = np.fmax(ops.column("copies"), 1.0) if "copies" in ops.fields else np.ones(len(ops))
    among = np.fmin(ops.column("reach"), nodes) if "reach" in ops.fields else nodes
    reached = among * (1.0 - (1.0 - 1.0 / among) ** copies)
    away: Floats = size / copies * reached * (nodes - 1.0) / nodes
    return away


def least_over_nodes(ops: OpTable, network_bytes_per_s: float) -> Floats:
    """Return the least seconds of the bytes that leave a node through its adapters, [n]; switches may add up sums."""
    size, n, nodes = (ops.column(name) for name in ("message_bytes", "devices", "nodes"))
    leaving = np.where(_IS_SEND[ops.kind], size, size * (1.0 - 1.0 / nodes))
    leaving = np.where(_IS_EXCHANGE[ops.kind], _sent_away(ops), leaving)
    adapters = np.where((_IS_SEND | _IS_EXCHANGE)[ops.kind], 1.0, n / nodes)
    least: Floats = leaving / (adapters * network_bytes_per_s)
    return least


_DOMAIN = COLUMN_INDEX["link_domain_gpus"]
# Most rows predicted at once, whose columns fit the cache; no power of two, which would map them to the same lines.
CHUNK = 16_000
# Default network bandwidth per device, bytes per second.
USUAL_BYTES_PER_S = Parallelism().network_bytes_per_s


class QueryParts(NamedTuple):
    """Rows on one GPU as sent to the predictor, and the internode parts that `OperatorQuery.predict` added.

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
    rows = np.flatnonzero(IS_COLLECTIVE[ops.kind])
    return rows[ops.dims[ops.fields["nodes"], rows] > 1.0] if len(rows) else rows


class Surroundings(NamedTuple):
    """What devices are surrounded by.

    network_bytes_per_s  bandwidth of one network adapter, one way; None: the usual one, which limits nothing
    link     link of the devices of a machine; None: the best that they have
    host     which host launches eager operators
    """

    network_bytes_per_s: float | None = None
    link: Link | None = None
    host: Host = "datacenter"


def surroundings_of(split: Parallelism) -> Surroundings:
    """Return the surroundings of a network's devices."""
    rate = split.network_bytes_per_s
    return Surroundings(None if rate == USUAL_BYTES_PER_S else rate, split.link)


class OperatorQuery(NamedTuple):
    """A query of n operators on any GPUs, `requested` as in the request; by which predictor, and with which intervals.

    assumed  whether nobody asked for the rows' formats, so that GPUs without them run others (`as_run`)
    """

    engine: Engine
    requested: OpTable
    gpus: GpuTable
    predictor: str
    coverage: float
    surroundings: Surroundings = Surroundings()
    assumed: bool = False

    def predict(self, targets: Sequence[int]) -> Predictions:
        """Return the answers on GPU rows `targets`, GPU by GPU, with internode collectives over the network.

        Their intervals keep their relative width, and stay above the hardware limit. Measured rows are not changed.
        """
        ops = self.requested
        if not IS_COLLECTIVE[ops.kind].any():
            return self._within_nodes(ops, targets)
        joined = self.gpus.values[_DOMAIN][np.array(targets, dtype=np.intp)]
        racked = (joined > MOST_IN_A_MACHINE) & (self.surroundings.link is None)
        if not racked.any():
            return self._over_nodes(ops, targets)
        joined = np.where(racked, joined, 0.0)
        sizes = np.unique(joined).tolist()
        places = [np.flatnonzero(joined == size) for size in sizes]
        parts = [
            self._over_nodes(in_racks(ops, size) if size else ops, [targets[k] for k in mine.tolist()])
            for size, mine in zip(sizes, places, strict=True)
        ]
        back = np.argsort(np.concatenate(places))[:, None] * len(ops) + np.arange(len(ops))
        return Predictions.joined(parts).take(back.ravel())

    def _within_nodes(self, ops: OpTable, targets: Sequence[int], requested: OpTable | None = None) -> Predictions:
        """Return the predictors' answers within a node, GPU by GPU; `requested` rows are looked up as measured."""
        n = ops.kind.size
        i, j = np.tile(np.arange(n), len(targets)), np.repeat(np.array(targets, dtype=np.intp), n)
        formats = [as_run(self.engine, ops, self.gpus, target).dtype for target in targets] if self.assumed else []
        different = {dtype.tobytes(): dtype for dtype in formats}
        if any(dtype is not ops.dtype for dtype in formats):
            places = [list(different).index(dtype.tobytes()) for dtype in formats]
            i += n * np.repeat(places, n)
            requested = None if requested is None else _in_formats(requested, different.values())
            ops = _in_formats(ops, different.values())
        gpus, link, host = self.gpus, self.surroundings.link, self.surroundings.host
        if link is not None:
            gpus, j = over_link(ops, gpus, i, j, link)
        answer = self.engine.predict_with_hits(
            ops, gpus, i, j, predictor=self.predictor, coverage=self.coverage, requested=requested
        )
        return answer if host == "datacenter" else on_host(answer, ops, gpus, i, j, self.coverage, host)

    def _over_nodes(self, ops: OpTable, targets: Sequence[int]) -> Predictions:
        """Return the answers, with collectives over several nodes timed over the network."""
        answer = self._within_nodes(ops, targets, self.requested)
        rows = _several(ops)
        if not len(rows):
            return answer
        internode = ops.take(rows)
        within = self._within_nodes(within_nodes(internode), targets)
        across = self._across(internode, within, targets)
        apart = (np.arange(len(targets))[:, None] * len(ops) + rows).ravel()
        if (rate := self.surroundings.network_bytes_per_s) is not None:
            answer.limit_s[apart] = np.fmax(
                answer.limit_s[apart], np.tile(least_over_nodes(internode, rate), len(targets))
            )
        return _replace_times(answer, apart, across.seconds.T.ravel())

    def parts(self, answer: Predictions, target: int) -> QueryParts:
        """Return the parts of `answer` [n], which `predict` gave for GPU row `target`."""
        ops = self.requested
        joined = float(self.gpus.values[_DOMAIN][target])
        if joined > MOST_IN_A_MACHINE and IS_COLLECTIVE[ops.kind].any():
            ops = in_racks(ops, joined)
        several = _several(ops)
        several = several[answer.support[several] != MEASURED]
        if not len(several):
            return QueryParts(ops, answer, several, np.empty(0), Across(*np.empty((3, 0, 1))))
        internode, dims = ops.take(several), ops.dims.copy()
        inside = within_nodes(internode)
        within = self._within_nodes(inside, [target])
        dims[:, several] = inside.dims
        columns = {name: getattr(answer, name).copy() for name in Predictions.__dataclass_fields__}
        for name, column in columns.items():
            column[several] = getattr(within, name)
        across = self._across(internode, within, [target])
        return QueryParts(replace(ops, dims=dims), Predictions(**columns), several, internode.column("nodes"), across)

    def _across(self, internode: OpTable, within: Predictions, targets: Sequence[int]) -> Across:
        """Return the parts of collectives over several nodes, from the answers `within` a node, GPU by GPU."""
        linked = np.isfinite(self.gpus.column("link_bandwidth_bytes_per_s")[np.array(targets, dtype=np.intp)])
        within_s = np.where(linked, within.latency_s.reshape(len(targets), len(internode)).T, np.nan)
        return over_nodes(internode, within_s, self.surroundings.network_bytes_per_s or USUAL_BYTES_PER_S)


def _in_formats(ops: OpTable, formats: Iterable[Ints]) -> OpTable:
    return concatenate([replace(ops, dtype=dtype) for dtype in formats])


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


_SUM, _PRODUCT, _BY_BLOCKS = OP_CODE["all_reduce"], OP_CODE["linear"], DTYPE_CODE["fp8_block"]
# By the code of a stack: that of the stack whose products in FP8 by blocks it also chooses, NaN for none.
_BORROWED_FROM = np.array([np.nan if name is None else code_of(name) for name in kernel_fact("fp8_block_products_of")])


def predict_quickest(query: OperatorQuery, targets: Sequence[int]) -> Predictions:
    """Return the predictions of the query on GPU rows `targets`, GPU by GPU, each with its stack's quickest kernel."""

    def predict(rows: OpTable) -> Predictions:
        if rows.kind.size <= CHUNK:
            return query._replace(requested=rows).predict(targets)
        firsts, g = range(0, len(rows), CHUNK), len(targets)
        parts = [query._replace(requested=rows.slice(first, first + CHUNK)).predict(targets) for first in firsts]
        places = np.split(np.arange(g * len(rows)), [g * first for first in firsts[1:]])
        by_gpu = np.concatenate([of_part.reshape(g, -1) for of_part in places], axis=1)
        return Predictions.joined(parts).take(by_gpu.ravel())

    return quickest_kernels(query.requested, len(targets), predict)


def quickest_kernels(ops: OpTable, targets: int, predict: Callable[[OpTable], Predictions]) -> Predictions:
    """Return the predictions of a network's rows on `targets` GPUs, GPU by GPU, from those of `predict`.

    Rows whose stack has another kernel are also predicted with that one, and have the quicker prediction of both.
    """
    sums, lender = _own_sums(ops), _lenders(ops)
    products = ~np.isnan(lender)
    own = np.flatnonzero(sums | products)
    if not len(own):
        return predict(ops)
    others = ops.take(own)
    dims = others.dims.copy()
    if sums.any():
        dims[others.fields["implementation"], sums[own]] = NCCL
    if products.any():
        dims[others.fields["stack"], products[own]] = lender[products]
    every = predict(concatenate([ops, replace(others, dims=dims)]))
    n = len(ops)
    first = np.arange(targets)[:, None] * (n + len(own))
    own_kernel, other_kernel = (first + rows for rows in (np.arange(n), n + np.arange(len(own))))
    own_kernel[:, own] = np.where(
        every.latency_s[other_kernel] < every.latency_s[own_kernel[:, own]], other_kernel, own_kernel[:, own]
    )
    return every.take(own_kernel.ravel())


def _own_sums(ops: OpTable) -> Bools:
    """Return the all-reduces by a stack's own kernels, bool [n]."""
    sums: Bools = ops.kind == _SUM
    return sums & (ops.column("implementation") == CUSTOM) if sums.any() else sums


def _lenders(ops: OpTable) -> Floats:
    """Return the codes of the stacks whose products in FP8 by blocks are chosen too, float64 [n]; NaN of none."""
    lender = np.full(ops.kind.size, np.nan)
    rows = (ops.kind == _PRODUCT) & (ops.dtype == _BY_BLOCKS)
    if rows.any():
        stack = ops.column("stack")[rows]
        known = ~np.isnan(stack)
        lender[np.flatnonzero(rows)[known]] = _BORROWED_FROM[stack[known].astype(np.intp)]
    return lender
