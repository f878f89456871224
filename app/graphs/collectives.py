"""Collectives between nodes, by alpha-beta models of rings and trees (Thakur et al. 2005; NCCL's double trees).

Within a node predictors know collectives, as they were measured there. Over N nodes of L devices each, n = N L, a ring
passes n - 1 hops a round, N of them between nodes, and moves S (n - 1) / n at the slower of two rates: a device's link
within the node, and its node's L network adapters together, which rings share out. all_reduce takes two rounds; or a
tree, up and down log2 N levels of nodes and a chain in each, moving the same: the faster of the two, as NCCL picks.
all_gather and reduce_scatter take one round. all_to_all sends S / n to every other device, those on other nodes through
the device's own adapter, beside those within; send_recv passes S through it.
"""

from __future__ import annotations

import numpy as np

from app.ops import OP_CODE
from app.tables.ops import OpTable
from app.tables.workload import Floats

# Launch and protocol, a hop within a node, and the part of a link's datasheet bandwidth that large messages get: of
# NCCL on eight devices of A100, H100 and B200 (NVLink).
_BASE_S, _HOP_S, _LINK_SHARE = 9e-6, 1e-6, 0.7
# A hop through adapters and switches, and the part of an adapter's bandwidth that is payload: InfiniBand, RoCE.
_NETWORK_HOP_S, _NETWORK_SHARE = 5e-6, 0.9


def over_nodes(ops: OpTable, latency_s: Floats, link_bytes_per_s: Floats, network_bytes_per_s: float) -> Floats:
    """Latencies with those of collectives over several nodes put right, seconds, float64 [n, g].

    latency_s [n, g] is what predictors say, link_bytes_per_s [g] each GPU's link (NaN: none but the network).
    """
    rows = np.flatnonzero(ops.column("nodes") > 1.0)
    if not len(rows):
        return latency_s
    corrected = latency_s.copy()
    corrected[rows] = _seconds(ops.take(rows), link_bytes_per_s, network_bytes_per_s)
    return corrected


def _seconds(ops: OpTable, link_bytes_per_s: Floats, network_bytes_per_s: float) -> Floats:
    size, n, nodes = (ops.column(name)[:, None] for name in ("message_bytes", "devices", "nodes"))
    per_node = n / nodes
    adapter = _NETWORK_SHARE * network_bytes_per_s
    link = _LINK_SHARE * np.where(np.isnan(link_bytes_per_s), network_bytes_per_s, link_bytes_per_s)[None, :]
    # Rings enter and leave a node through all of its adapters.
    rate = np.minimum(np.where(per_node > 1, link, np.inf), per_node * adapter)
    round_s = (n - nodes) * _HOP_S + nodes * _NETWORK_HOP_S
    moved = size * (n - 1.0) / n / rate
    tree = np.ceil(np.log2(nodes)) * _NETWORK_HOP_S + (per_node - 1.0) * _HOP_S
    away = size * (n - per_node) / n / adapter + (nodes - 1.0) * _NETWORK_HOP_S
    near = size * (per_node - 1.0) / n / link + (per_node - 1.0) * _HOP_S
    seconds = {
        "all_reduce": 2.0 * (np.minimum(round_s, tree) + moved),
        "all_gather": round_s + moved,
        "reduce_scatter": round_s + moved,
        "all_to_all": np.maximum(away, near),
        "send_recv": size / adapter + _NETWORK_HOP_S + 0.0 * link,
    }
    result = np.zeros((len(ops), len(link_bytes_per_s)))
    for name, time in seconds.items():
        result = np.where((ops.kind == OP_CODE[name])[:, None], time, result)
    return _BASE_S + result
