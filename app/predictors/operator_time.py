"""The time of deep-learning operators from physics and documented priors alone: `auto` before it is trained.

time = overhead + (compute^p + memory^p)^(1/p), never under the hardware limit; compute = FLOPs / (sustained rate x
tile efficiency x the family's share), memory = bytes that cannot stay in the L2 / (sustained bandwidth x share), at
least all bytes / L2 bandwidth. Overhead is the host's per operator where PyTorch launches each (eager), else the
device's per launch. No measurement stands behind an answer: the priors are read off published ceilings and off the
spread of whole families, not fitted to a GPU.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.ops import OPS
from app.ops.base import Products
from app.ops.kinds import Kind, kinds_of, link_bytes_of, work_of
from app.ops.tiles import CANDIDATES, Grid, grid, wave_efficiency
from app.predictors.intervals import OPERATOR_GROUP
from app.predictors.roofline import hardware_limit
from app.predictors.sustained import bandwidths, compute_rates
from app.tables.gpus import GpuTable
from app.tables.ops import DTYPE_CODE, OpTable
from app.tables.predictions import COMMUNICATION, COMPUTE, EXTRAPOLATED, LAUNCH, MEMORY, Estimate

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]


class Prior(NamedTuple):
    """What a group of families is known for.

    compute  share of the sustained rate that its kernels reach on full tiles
    memory   share of the sustained bandwidth
    host_s   shortest time of an operator that PyTorch launches by itself, seconds
    device_s time of an operator of no work in a CUDA graph, seconds
    """

    compute: float
    memory: float
    host_s: float
    device_s: float


# Host times: PyTorch 2.1 eager, shortest calls of each family. Attention works on fewer useful elements of
# a tile than a product (causal edges, exponentials between two products: FlashAttention-3 reports 75 % of peak at best
# and half of it at 2K); decoding reads the cache in many small pieces; experts are many small products with
# a permutation before and after them.
PRIORS = {
    "linear": Prior(1.0, 0.9, 40e-6, 3e-6),
    "bmm": Prior(1.0, 0.9, 36e-6, 3e-6),
    "conv2d": Prior(1.0, 0.9, 60e-6, 6e-6),
    "norm": Prior(1.0, 0.72, 48e-6, 3e-6),
    "softmax": Prior(1.0, 0.8, 36e-6, 3e-6),
    "pool": Prior(1.0, 0.8, 32e-6, 3e-6),
    "elementwise": Prior(1.0, 1.0, 28e-6, 2.5e-6),
    "embedding": Prior(1.0, 0.8, 30e-6, 3e-6),
    "recurrent": Prior(0.6, 0.6, 80e-6, 5e-6),
    "attention": Prior(0.65, 0.6, 60e-6, 6e-6),
    "moe": Prior(0.6, 0.75, 150e-6, 25e-6),
    "collective": Prior(1.0, 0.8, 60e-6, 12e-6),
    "memory": Prior(1.0, 1.0, 20e-6, 2.5e-6),
}
# Part of the host's time that adds to the device's; the rest overlaps with it.
HOST_SHARE = 0.5
# Exponent of the blend of compute and memory, which overlap but for their ends.
OVERLAP = 4.0
# Bytes move through the L2 at this share of its ports' width at most (micro-benchmarks of Volta to Hopper).
L2_SHARE = 0.35
# A product's tile of r x c reads r + c elements for r c multiply-adds: its speed is 1 / (1 + edge (1 / r + 1 / c)).
TILE_EDGE = 16.0
# Part of a link's datasheet bandwidth that collectives get: switched links (NVLink and the like), and PCIe,
# where the topology of the host decides.
FAST_LINK, FAST_SHARE, SLOW_SHARE = 1e11, 0.8, 0.4
# Seconds per further device that a collective's messages pass.
HOP_S = 1.5e-6

_EAGER_DTYPE = np.zeros(len(DTYPE_CODE), dtype=np.bool_)
_EAGER_DTYPE[[DTYPE_CODE[name] for name in ("fp64", "fp32", "tf32")]] = True
_PRIOR = np.array([PRIORS.get(op.group, PRIORS["memory"]) for op in OPS]).T
_GROUP = np.array([OPERATOR_GROUP.get(op.group, 0) for op in OPS])
_TILE_SPEED = (1.0 / (1.0 + TILE_EDGE * (1.0 / CANDIDATES).sum(axis=1)))[:, None]


def _products_of(ops: OpTable, kinds: list[Kind]) -> Products | None:
    """Products of every row, NaN of those that are none; None if none is."""
    found = [(rows, op.products(table)) for op, rows, table in kinds]
    if all(products is None for _, products in found):
        return None
    columns = np.full((4, len(ops)), np.nan)
    for rows, products in found:
        if products is not None:
            columns[:, rows] = products
    return Products(*columns)


def tile_efficiency(tiles: Grid, sms: Floats) -> Floats:
    """Share of the peak that the best tile reaches on `sms` SMs, float64 [n]."""
    share = _TILE_SPEED * tiles.fill * wave_efficiency(tiles.blocks, tiles.splits, sms)
    best: Floats = share.max(axis=0) / _TILE_SPEED.max()
    return best


def _overhead_s(ops: OpTable, kinds: list[Kind], i: Ints) -> tuple[Floats, Floats]:
    """Seconds that add to the work, and the shortest time, [n] each."""
    eager = ops.column("eager")
    hosted = np.where(np.isnan(eager), _EAGER_DTYPE[ops.dtype], eager) > 0
    launches = np.empty(len(ops))
    for op, rows, table in kinds:
        launches[rows] = op.launches(table)
    host, device = _PRIOR[2, ops.kind], _PRIOR[3, ops.kind] * launches
    adds = np.where(hosted, HOST_SHARE * host, device)
    return adds[i], np.maximum(np.where(hosted, host, device), adds)[i]


def operator_estimate(ops: OpTable, gpus: GpuTable, i: Ints, j: Ints) -> Estimate:
    """Operator row `i[q]` on GPU row `j[q]`."""
    kinds, kind = kinds_of(ops), ops.kind[i]
    work = work_of(ops, kinds)
    busy = np.where(ops.column("burst") > 0, 1, 0)
    compute = work.flops[i] / (_PRIOR[0, kind] * compute_rates(gpus)[busy[i], ops.dtype[i], j])
    products = _products_of(ops, kinds)
    if products is not None:
        tiles = Grid(*(part[..., i] for part in grid(products)))
        compute /= np.nan_to_num(tile_efficiency(tiles, gpus.column("sm_count")[j]), nan=1.0)
    compute = np.nan_to_num(compute)  # a dtype that the GPU lacks
    moved, spilled = work.bytes[i], np.maximum(work.working_set_bytes[i] - gpus.column("l2_bytes")[j], 0.0)
    memory = np.minimum(moved, spilled) / (_PRIOR[1, kind] * bandwidths(gpus)[j])
    memory = np.maximum(memory, moved / (L2_SHARE * gpus.column("l2_bandwidth_bytes_per_s")[j]))
    adds, least = _overhead_s(ops, kinds, i)
    busy_s = (compute**OVERLAP + memory**OVERLAP) ** (1.0 / OVERLAP)
    bound = np.where(compute > memory, COMPUTE, MEMORY)
    sent = link_bytes_of(ops, kinds)
    if sent is not None:
        link_s, hops_s = _link_s(ops, gpus, sent, i, j)
        bound = np.where(link_s > busy_s, COMMUNICATION, bound)
        busy_s, adds = np.maximum(busy_s, link_s), adds + hops_s
    latency = np.maximum(adds + busy_s, least)
    bound = np.where(busy_s < 0.5 * latency, LAUNCH, bound)
    latency = np.maximum(latency, hardware_limit(ops, gpus, i, j).latency_s)
    return Estimate(latency, bound, np.full(len(i), EXTRAPOLATED), _GROUP[kind])


def _link_s(ops: OpTable, gpus: GpuTable, sent: Floats, i: Ints, j: Ints) -> tuple[Floats, Floats]:
    """Seconds of a collective's bytes on the link, and of its hops, [n] each; 0 of other operators."""
    link = gpus.column("link_bandwidth_bytes_per_s")[j]
    seconds = sent[i] / (np.where(link > FAST_LINK, FAST_SHARE, SLOW_SHARE) * link)
    hops = HOP_S * np.nan_to_num(ops.column("devices")[i] - 1.0)
    return np.nan_to_num(seconds), np.where(sent[i] > 0, hops, 0.0)
