"""Partition of a network over unequal GPUs that minimises the time of the slowest stage (PM2Lat, section IV-D).

Stages hold consecutive units (a repetition of a block, or a row of a block that runs once) on GPUs given in order. A
stage's time is that of its units plus the transfer of its input. The slowest stage sets the throughput; the latency of
a single request is the sum over stages. An exact dynamic program (the paper's text refers to it) computes best[s, u],
the least bottleneck of the first u units on the first s GPUs, from best[s - 1].
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.tables.arrays import Floats, Ints
from app.tables.workload import Workload


class Units(NamedTuple):
    """u consecutive units of a network, in execution order.

    block, row      int [u], block of the workload, and the row (-1: a whole repetition of the block)
    resident_bytes  float64 [u], weights and KV cache
    working_bytes   float64 [u], peak of live activations while it runs
    sent_bytes      float64 [u], activations that cross a cut after it
    """

    block: Ints
    row: Ints
    resident_bytes: Floats
    working_bytes: Floats
    sent_bytes: Floats


class Partition(NamedTuple):
    """The best partition into s stages.

    first           int [s + 1], first unit of every stage, and the number of units
    stage_s         float64 [s], time of every stage, including the transfer of its input
    bytes           float64 [s], memory that every stage needs
    capacity_bytes  float64 [s], memory of its GPU
    """

    first: Ints
    stage_s: Floats
    bytes: Floats
    capacity_bytes: Floats

    @property
    def fits(self) -> NDArray[np.bool_]:
        """True for stages that fit into their GPU's memory, bool [s]."""
        enough: NDArray[np.bool_] = self.bytes <= self.capacity_bytes
        return enough

    @property
    def bottleneck_s(self) -> float:
        """Time between finished requests, seconds."""
        return float(self.stage_s.max())

    @property
    def latency_s(self) -> float:
        """Time of a single request, seconds."""
        return float(self.stage_s.sum())


def units_of(workload: Workload) -> Units:
    """Return the units of a forward workload: repetitions of blocks that repeat, rows of blocks that run once."""
    block, row = [], []
    for k, repeats in enumerate(workload.repeats.tolist()):
        rows = np.flatnonzero(workload.block == k).tolist()
        own = [-1] * int(repeats) if repeats > 1 else rows
        block += [k] * len(own)
        row += own
    return _measured(workload, np.array(block, dtype=np.intp), np.array(row, dtype=np.intp))


def _measured(workload: Workload, block: Ints, row: Ints) -> Units:
    """Return the units with their sizes."""
    held = workload.weight_bytes + workload.kv_bytes
    live = _live_bytes(workload)
    blocks = len(workload.repeats)
    last = np.maximum.reduceat(np.arange(len(workload)), _starts(workload.block))
    present = workload.block[_starts(workload.block)]
    resident, working, sent = np.zeros(blocks), np.zeros(blocks), np.zeros(blocks)
    np.add.at(resident, workload.block, held)
    np.maximum.at(working, workload.block, live)
    sent[present] = workload.output_bytes[last]
    whole = row < 0
    return Units(
        block,
        row,
        np.where(whole, resident[block], held[row]),
        np.where(whole, working[block], live[row]),
        np.where(whole, sent[block], _crossing(workload)[row]),
    )


def _starts(block: Ints) -> Ints:
    """Return the first row of every block that has rows."""
    starts: Ints = np.flatnonzero(np.concatenate([[True], block[1:] != block[:-1]]))
    return starts


def _last_use(workload: Workload) -> Ints:
    """Return the last reader of each row's output, int [n]; the row itself if it has none."""
    last = np.arange(len(workload))
    np.maximum.at(last, workload.edges[0], workload.edges[1])
    return last


def _crossing(workload: Workload) -> Floats:
    """Return bytes written up to each row and read after it, float64 [n]; a row without readers feeds the next."""
    n, last = len(workload), _last_use(workload)
    ends = np.minimum(np.where(last == np.arange(n), last + 1, last), n)
    change = np.zeros(n + 1)
    np.add.at(change, np.arange(n), workload.output_bytes)
    np.add.at(change, ends, -workload.output_bytes)
    crossing: Floats = np.maximum(np.cumsum(change)[:n], 0.0)
    return crossing


def _live_bytes(workload: Workload) -> Floats:
    """Return live bytes of activations while each row runs, float64 [n]: its inputs, output and tensors read later."""
    crossing = _crossing(workload)
    read = np.zeros(len(workload))
    ended = _last_use(workload)[workload.edges[0]] == workload.edges[1]
    producer, consumer = workload.edges[:, ended]
    np.add.at(read, consumer, workload.output_bytes[producer])
    live: Floats = crossing + read
    return live


def partition(units: Units, time_s: Floats, link_s: Floats, capacity_bytes: Floats, reserve_bytes: float) -> Partition:
    """Return the partition of least bottleneck that fits into memory; if none fits, that of least bottleneck.

    time_s          float64 [u, s], time of unit u on the GPU of stage s
    link_s          float64 [u, s], transfer time to stage s of the tensors that cross a cut before unit u (stage 0: 0)
    capacity_bytes  float64 [s], memory of every stage's GPU
    reserve_bytes   memory that a process takes on each GPU in addition to the network

    Every stage has at least one unit; raises ValueError with fewer units than stages.
    """
    n, stages = time_s.shape
    if n < stages:
        raise ValueError(f"{n} units cannot be cut into {stages} stages")
    needed = _needed(units, reserve_bytes)
    cost = [_stage_costs(time_s[:, s], link_s[:, s]) for s in range(stages)]
    within = [np.where(needed <= capacity_bytes[s], cost[s], np.inf) for s in range(stages)]
    first = _best_cuts(within)
    if first is None:
        first = _best_cuts(cost)
    assert first is not None  # without limits every cut is allowed
    a, b, s = first[:-1], first[1:], np.arange(stages)
    stage_s = np.array([cost[k][a[k], b[k]] for k in s])
    return Partition(first, stage_s, needed[a, b], capacity_bytes)


def _stage_costs(time_s: Floats, link_s: Floats) -> Floats:
    """Return the time of a stage of units a to b - 1, at [a, b]; infinite if empty."""
    total = np.concatenate([[0.0], np.cumsum(time_s)])
    cost = total[None, :] - total[:, None] + np.append(link_s, 0.0)[:, None]
    return np.where(np.arange(len(total))[None, :] > np.arange(len(total))[:, None], cost, np.inf)


def _needed(units: Units, reserve_bytes: float) -> Floats:
    """Return the memory of a stage of units a to b - 1, at [a, b]."""
    n = len(units.block)
    held = np.concatenate([[0.0], np.cumsum(units.resident_bytes)])
    most = np.zeros((n + 1, n + 1))
    for a in range(n):
        most[a, a + 1 :] = np.maximum.accumulate(units.working_bytes[a:])
    needed: Floats = held[None, :] - held[:, None] + most + reserve_bytes
    return needed


def _best_cuts(cost: list[Floats]) -> Ints | None:
    """Return the first units of every stage, and the end; None if every partition has infinite cost."""
    n = len(cost[0]) - 1
    best = cost[0][0]  # the first stage alone: units 0 to u - 1
    chosen = []
    for stage in cost[1:]:
        worst = np.maximum(best[:, None], stage)  # [cut, u]
        chosen.append(worst.argmin(axis=0))
        best = worst.min(axis=0)
    if not np.isfinite(best[n]):
        return None
    ends = [n]
    for cut in reversed(chosen):
        ends.append(int(cut[ends[-1]]))
    return np.array([0, *reversed(ends)], dtype=np.intp)
