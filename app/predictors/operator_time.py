"""The time of deep-learning operators from physics and one documented constant per family: `auto` before it is trained.

time = overhead + (compute^p + memory^p)^(1/p), never under the hardware limit; compute = FLOPs / (sustained rate x
tile efficiency x the family's share), memory = bytes that cannot stay in the L2 / (sustained bandwidth x share), at
least all bytes / L2 bandwidth. Overhead is the host's per operator where PyTorch launches each (eager), else the
device's per launch. No measurement of the row or its GPU is used.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.ops import OPS
from app.ops.kinds import Kind, kinds_of, least_flops_of, link_bytes_of, work_of
from app.ops.tiles import CANDIDATES, Grid, grid, wave_efficiency
from app.predictors.compiled import compiled
from app.predictors.intervals import OPERATOR_GROUP
from app.predictors.operator_priors import (
    BY_KIND,
    FAST_LINK_BYTES_PER_S,
    FAST_SHARE,
    HOP_S,
    HOST_SHARE,
    IS_EAGER,
    IS_LINEAR,
    L2_SHARE,
    OVERLAP,
    QUANTISED_BYTES,
    QUANTISING,
    SLOW_SHARE,
    TILE_EDGE,
)
from app.predictors.roofline import memory_limit_s, peaks
from app.predictors.sustained import bandwidths, compute_rates
from app.tables.gpus import COLUMN_INDEX, GpuTable
from app.tables.ops import OpTable
from app.tables.predictions import COMMUNICATION, COMPUTE, EXTRAPOLATED, LAUNCH, MEMORY, Estimate

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
Bools = NDArray[np.bool_]

_GROUP = np.array([OPERATOR_GROUP.get(op.group, 0) for op in OPS])
_TILE_SPEED = 1.0 / (1.0 + TILE_EDGE * (1.0 / CANDIDATES).sum(axis=1))
_TILE_SPEED /= _TILE_SPEED.max()
_SMS = COLUMN_INDEX["sm_count"]
_L2, _L2_BANDWIDTH = COLUMN_INDEX["l2_bytes"], COLUMN_INDEX["l2_bandwidth_bytes_per_s"]
_LINK = COLUMN_INDEX["link_bandwidth_bytes_per_s"]


class Traits(NamedTuple):
    """What rows ask of any device, float64 [n] each unless said.

    flops, least_flops  work, also by the cheapest algorithm known
    moved, distinct     bytes
    quantised           bytes moved to quantise activations first
    compute, memory     shares of the sustained rates
    adds_s, least_s     overhead that adds to the work, and the shortest time, seconds
    sent, hops_s        bytes over the link, and seconds that messages pass on, of collectives; else 0
    blocks, fill, splits  as in app.ops.tiles.Grid, [candidates, n]; a row that is no product fills none
    dtype, burst        int [n]; 1 on a cool card
    """

    flops: Floats
    least_flops: Floats
    moved: Floats
    distinct: Floats
    quantised: Floats
    compute: Floats
    memory: Floats
    adds_s: Floats
    least_s: Floats
    sent: Floats
    hops_s: Floats
    blocks: Floats
    fill: Floats
    splits: Floats
    dtype: Ints
    burst: Ints


class Devices(NamedTuple):
    """The GPU table as compiled code reads it."""

    rates: Floats
    bandwidth: Floats
    peak: Floats
    figures: Floats


_waves = compiled(wave_efficiency)


@compiled
def _tile_efficiency(traits: Traits, row: int, sms: float) -> float:
    """Share of the peak that the best tile reaches; 1 of a row that has none."""
    best = 0.0
    for tile in range(traits.blocks.shape[0]):
        share = traits.fill[tile, row] * _TILE_SPEED[tile]
        if share > best:
            best = max(best, share * _waves(traits.blocks[tile, row], traits.splits[row], sms))
    return best if best > 0.0 else 1.0


@compiled
def _memory_s(traits: Traits, row: int, devices: Devices, gpu: int) -> float:
    """Seconds of the bytes: what cannot stay in the L2 from DRAM, all of them through the L2."""
    moved = traits.moved[row] + traits.quantised[row]
    beyond = traits.distinct[row] + traits.quantised[row] - devices.figures[_L2, gpu]
    dram_s = min(moved, max(beyond, 0.0)) / (traits.memory[row] * devices.bandwidth[gpu])
    return float(max(dram_s, moved / (L2_SHARE * devices.figures[_L2_BANDWIDTH, gpu])))


@compiled
def _fill(traits: Traits, devices: Devices, i: Ints, j: Ints, latency_s: Floats, bound: Ints) -> None:
    figures = devices.figures
    for q in range(len(i)):
        row, gpu = i[q], j[q]
        dtype, moved, distinct = traits.dtype[row], traits.moved[row], traits.distinct[row]
        limit = memory_limit_s(moved, distinct, figures, gpu)
        compute, least = 0.0, traits.least_flops[row] / devices.peak[dtype, gpu]
        if not np.isnan(least):  # else a dtype that the GPU lacks: nothing is known of its arithmetic
            limit = max(limit, least)
            rate = traits.compute[row] * devices.rates[traits.burst[row], dtype, gpu]
            compute = traits.flops[row] / (rate * _tile_efficiency(traits, row, figures[_SMS, gpu]))
        memory = _memory_s(traits, row, devices, gpu)
        work, code = (compute**OVERLAP + memory**OVERLAP) ** (1.0 / OVERLAP), COMPUTE if compute > memory else MEMORY
        link = figures[_LINK, gpu]
        if traits.sent[row] > 0.0 and not np.isnan(link):
            limit = max(limit, traits.sent[row] / link)
            link_s = traits.sent[row] / (link * (FAST_SHARE if link > FAST_LINK_BYTES_PER_S else SLOW_SHARE))
            if link_s > work:
                work, code = link_s, COMMUNICATION
        time = max(traits.adds_s[row] + traits.hops_s[row] + work, traits.least_s[row])
        bound[q] = LAUNCH if work < 0.5 * time else code
        latency_s[q] = max(time, limit)


def _grid_of(ops: OpTable, kinds: list[Kind]) -> Grid:
    """Tiles of every row; a row that is no product fills none."""
    found = [(rows, products) for op, rows, table in kinds if (products := op.products(table)) is not None]
    if not found:
        return Grid(np.zeros((0, len(ops))), np.zeros((0, len(ops))), np.zeros(len(ops)))
    if len(kinds) == 1:
        return grid(found[0][1])
    tiles = Grid(np.ones((len(CANDIDATES), len(ops))), np.zeros((len(CANDIDATES), len(ops))), np.ones(len(ops)))
    for rows, products in found:
        for whole, part in zip(tiles, grid(products), strict=True):
            whole[..., rows] = part
    return tiles


def _overhead_s(ops: OpTable, kinds: list[Kind], eager: Bools) -> tuple[Floats, Floats]:
    """Seconds that add to the work, and the shortest time, [n] each."""
    host, device = BY_KIND[ops.kind, 2], BY_KIND[ops.kind, 3]
    for op, rows, table in kinds:
        device[rows] *= op.launches(table)
    quantising, least = QUANTISING[ops.dtype].T * (IS_LINEAR[ops.kind] & ~eager)
    adds = np.where(eager, HOST_SHARE * host, device + quantising)
    return adds, np.maximum(np.where(eager, np.maximum(host, device), least), adds)


def _traits(ops: OpTable, kinds: list[Kind]) -> Traits:
    """Traits of every row."""
    work, nothing = work_of(ops, kinds), np.zeros(len(ops))
    given = ops.column("eager")
    eager = np.where(np.isnan(given), IS_EAGER[ops.dtype], given) > 0
    sent = link_bytes_of(ops, kinds)
    return Traits(
        work.flops,
        least_flops_of(work.flops, kinds),
        work.bytes,
        work.working_set_bytes,
        _quantised_bytes(ops, kinds, eager),
        BY_KIND[ops.kind, 0],
        BY_KIND[ops.kind, 1],
        *_overhead_s(ops, kinds, eager),
        nothing if sent is None else sent,
        nothing if sent is None else HOP_S * np.maximum(np.nan_to_num(ops.column("devices")) - 1.0, 0.0),
        *_grid_of(ops, kinds),
        ops.dtype,
        (ops.column("burst") > 0).astype(np.intp),
    )


def _quantised_bytes(ops: OpTable, kinds: list[Kind], eager: Bools) -> Floats:
    """Bytes moved to quantise the activations of `linear`."""
    moved = np.zeros(len(ops))
    for op, rows, table in kinds:
        if op.group == "linear":
            moved[rows] = QUANTISED_BYTES * table.column("m") * table.column("k")
    return np.where(eager | (QUANTISING[ops.dtype, 0] == 0), 0.0, moved)


def operator_estimate(ops: OpTable, gpus: GpuTable, i: Ints, j: Ints) -> Estimate:
    """Operator row `i[q]` on GPU row `j[q]`."""
    latency, bound = np.empty(len(i)), np.empty(len(i), dtype=np.intp)
    devices = Devices(compute_rates(gpus), bandwidths(gpus), peaks(gpus), gpus.values)
    _fill(_traits(ops, kinds_of(ops)), devices, i, j, latency, bound)
    return Estimate(latency, bound, np.full(len(i), EXTRAPOLATED), _GROUP[ops.kind[i]])
