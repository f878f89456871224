"""Split of a network into pipeline stages of whole consecutive layers that minimises the largest stage."""

from __future__ import annotations

import numpy as np

from app.graphs.batched import work_of_rows
from app.runtime.compiled import compiled
from app.tables.arrays import Floats
from app.tables.workload import FORWARD, Workload

# FLOPs per byte of bandwidth: about the ratio of tensor cores to HBM in 16 bits. It hardly matters: layers of a
# transformer are equal, only the embedding and the head differ.
_FLOPS_PER_BYTE = 100.0
_HALVINGS = 50
# Rounding tolerance of a stage's limit, in layers.
_TOLERANCE = 1e-9


def stage_repeats(w: Workload, stages: int) -> Floats:
    """Return how often each forward block runs on each stage, float64 [stages, blocks] or [stages, c, blocks].

    With fewer layers than stages some stages are empty.
    """
    repeats = w.repeats[..., : w.blocks]
    if stages == 1:
        return repeats[None]
    cost, repeats = np.broadcast_arrays(_costs(w), repeats)
    dealt = np.zeros((stages, *repeats.shape))
    cost, repeats = (np.array(part.reshape(-1, w.blocks), order="C") for part in (cost, repeats))
    _deal(cost, repeats, dealt.reshape(stages, -1, w.blocks))
    return dealt


def _costs(w: Workload) -> Floats:
    """Return the cost of one repetition of every forward block, in FLOPs."""
    work = work_of_rows(w.ops)
    flops = np.maximum(work.flops, _FLOPS_PER_BYTE * work.bytes) * w.ops.column("count") * (w.phase == FORWARD)
    return w.per_block(flops)


@compiled
def _deal(cost: Floats, repeats: Floats, dealt: Floats) -> None:
    """Fill `dealt` [stages, c, blocks] with the layers of each stage, minimising the largest stage by bisection.

    cost, repeats  float64 [c, blocks], cost of one layer of each block, and its number of layers
    """
    for k in range(len(cost)):
        whole = np.sum(cost[k] * repeats[k])
        low, high = max(np.max(cost[k]), whole / len(dealt)), whole
        fits = _filled(cost[k], repeats[k], high, dealt[:, k])
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            if _filled(cost[k], repeats[k], middle, dealt[:, k]):
                fits, high = True, middle
            else:
                low = middle
        if fits:
            _filled(cost[k], repeats[k], high, dealt[:, k])
        else:
            dealt[:, k] = 0.0
            dealt[0, k] = repeats[k]


@compiled
def _filled(cost: Floats, repeats: Floats, most: float, dealt: Floats) -> bool:
    """Fill `dealt` [stages, blocks] in order with no stage above cost `most`; return False if the layers do not fit."""
    dealt[:] = 0.0
    stage, room = 0, most
    for block in range(len(cost)):
        each, layers = cost[block], repeats[block]
        if each == 0:
            dealt[stage, block] = layers
            continue
        fits = np.floor(most / each + _TOLERANCE)
        if fits < 1:
            return False
        here = min(layers, max(np.floor(room / each + _TOLERANCE), 0.0))
        dealt[stage, block] = here
        room -= here * each
        if layers > here:
            more = int(np.ceil((layers - here) / fits))
            if stage + more >= len(dealt):
                return False
            dealt[stage + 1 : stage + more, block] = fits
            stage += more
            dealt[stage, block] = layers - here - (more - 1) * fits
            room = most - dealt[stage, block] * each
    return True
