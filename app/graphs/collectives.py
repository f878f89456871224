"""Collectives between nodes, by alpha-beta models of rings and trees (Thakur et al. 2005; NCCL's double trees).

Within a node predictors know collectives, as they were measured there. Over N nodes of L devices each, n = N L, a ring
moves S (n - 1) / n over each link, those within a node and its node's L network adapters, which rings share out: it
takes as long as the slower of the two, what a node takes for so many bytes (`within_nodes`) and its adapters. What
messages wait for at other nodes comes on top: of a ring N hops between nodes and those within the others, all_reduce
twice; or, if sooner, of a tree over log2 N levels of nodes, which moves the same, as NCCL picks. all_to_all sends S / n
to every other device, those on other nodes through the device's own adapter, beside those within; send_recv passes S
through it. Machines whose devices one link joins (a rack's: NVL72) are as one node, and several racks as several.
"""

from __future__ import annotations

from dataclasses import replace
from math import isqrt
from typing import NamedTuple

import numpy as np

from app.ops import OP_CODE
from app.predictors.priors import IS_COLLECTIVE
from app.tables.ops import OpTable
from app.tables.workload import Floats

# Launch and protocol, and a hop within a node: of NCCL on eight devices of A100, H100 and B200 (NVLink).
_BASE_S, _HOP_S = 9e-6, 1e-6
# A hop through adapters and switches, and the part of an adapter's bandwidth that is payload: InfiniBand, RoCE.
_NETWORK_HOP_S, _NETWORK_SHARE = 5e-6, 0.9


def in_racks(ops: OpTable, joined: float) -> OpTable:
    """Collectives over machines whose devices a link joins, `joined` of them: by racks in place of machines.

    Racks hold equally many; at least one row is of a collective.
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
    """Collectives over several nodes as one node runs its part: as many bytes over each link of its own devices."""
    size, n, nodes = (ops.column(name) for name in ("message_bytes", "devices", "nodes"))
    each, dims = n / nodes, ops.dims.copy()
    sent = np.where(ops.kind == OP_CODE["all_to_all"], each / n, (n - 1.0) / n * each / np.maximum(each - 1.0, 1.0))
    dims[ops.fields["message_bytes"]] = np.maximum(size * sent, 1.0)
    dims[ops.fields["spread"]] /= nodes
    dims[ops.fields["devices"]], dims[ops.fields["nodes"]] = each, 1.0
    return replace(ops, dims=dims)


class Across(NamedTuple):
    """Collectives over several nodes by their parts, seconds, float64 [n, g] each.

    node      what a node takes for its part; 0 where its devices have none
    adapters  launch, and the bytes through a node's network adapters, at the same time
    hops      what messages wait for at other nodes, on top
    """

    node: Floats
    adapters: Floats
    hops: Floats

    @property
    def seconds(self) -> Floats:
        """The whole, float64 [n, g]."""
        whole: Floats = np.maximum(self.node, self.adapters) + self.hops
        return whole


def over_nodes(ops: OpTable, within_s: Floats, network_bytes_per_s: float) -> Across:
    """Collectives over several nodes.

    within_s [n, g] is what predictors say of `within_nodes`, on each GPU; NaN of one that has no link: each byte leaves
    and enters through an adapter.
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
        "all_reduce": Across(near, _BASE_S + 2.0 * moved, 2.0 * np.minimum(ring, tree)),
        "all_gather": once,
        "reduce_scatter": once,
        # Every device sends to the others at its own pace: what a message waits for passes while the node sends, too.
        "all_to_all": Across(near, _BASE_S + away, np.zeros_like(near)),
        "send_recv": Across(np.zeros_like(near), _BASE_S + size / adapter, np.full_like(near, _NETWORK_HOP_S)),
    }
    found = Across(*np.zeros((3, *near.shape)))
    for name, across in parts.items():
        rows = (ops.kind == OP_CODE[name])[:, None]
        if rows.any():
            found = Across(*(np.where(rows, part, rest) for part, rest in zip(across, found, strict=True)))
    return found
