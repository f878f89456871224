"""Collectives over several nodes, by alpha-beta models of rings and trees (Thakur et al. 2005; NCCL's double trees).

Predictors cover collectives within a node, where they were measured. Over N nodes of L devices each (n = N L), a ring
moves S (n - 1) / n bytes over each link within a node and over the node's L network adapters together. Its time is the
larger of the node's own time for those bytes (`within_nodes`) and the adapters' time, plus latency: N hops between
nodes and the hops within the other nodes, twice for all_reduce; or, if shorter, a tree of log2 N levels that moves the
same bytes (NCCL picks the faster). all_to_all sends S / n to every other device: to other nodes through the device's
own adapter, concurrently within the node. send_recv passes S through the adapter. Machines joined by one link domain
(a rack such as NVL72) count as one node, several racks as several nodes.
"""

from __future__ import annotations

from dataclasses import replace
from math import isqrt
from typing import NamedTuple

import numpy as np

from app.ops import OPS
from app.ops.figures import Pattern
from app.predictors.priors import IS_COLLECTIVE
from app.tables.arrays import Floats
from app.tables.ops import OpTable

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
    away = size * (n - each) / n / adapter + (nodes - 1.0) * _NETWORK_HOP_S
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
