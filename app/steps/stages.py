"""Split of a network into pipeline stages: whole consecutive layers, the largest stage minimal; their transfers."""

from __future__ import annotations

import numpy as np

from app.networks.batched import per_configuration, unique_rows, work_of_rows
from app.networks.build import Builder
from app.networks.run import Run
from app.runtime.compiled import compiled
from app.tables.arrays import Floats
from app.tables.ops import OpTable
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


def stage_transfer(rows: Workload, run: Run) -> OpTable:
    """Return the transfer of a microbatch's activations between pipeline stages: one row, or one per configuration.

    Stages are cut between layers; the transfer is the output of the most repeated layer.
    """
    longest = np.atleast_1d(rows.repeats[..., : rows.blocks].argmax(axis=-1))
    last = np.searchsorted(rows.block, longest, side="right") - 1
    written = np.atleast_2d(rows.output_bytes)
    message = np.maximum(written[np.arange(len(written)), last], 1.0)
    builder = Builder(run.dtype)
    split = run.parallelism
    nodes, spread = 2.0 if split.nodes > 1 else 1.0, float(split.devices)
    builder.add(
        "send_recv", outputs=0.0, message_bytes=per_configuration(message), devices=2.0, nodes=nodes, spread=spread
    )
    return unique_rows(builder.build().ops).table
