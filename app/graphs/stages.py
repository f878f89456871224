"""Cutting a network into pipeline stages: whole layers, in order, so that the largest stage is as small as can be."""

from __future__ import annotations

import numpy as np

from app.graphs.many import work
from app.runtime.compiled import compiled
from app.tables.workload import FORWARD, Floats, Workload

# FLOPs in whose time a device moves a byte: about what tensor cores and HBM give in 16 bits. Layers of a transformer
# are alike, so it matters little: only the embedding and the head differ from them.
_FLOPS_PER_BYTE = 100.0
_HALVINGS = 50
# Of a layer, by which a stage may be over what it has room for: rounding.
_TOLERANCE = 1e-9


def stage_repeats(w: Workload, stages: int) -> Floats:
    """How often each forward block runs on each stage, float64 [stages, blocks]; too few layers leave some empty.

    Of c configurations [stages, c, blocks].
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
    """Of one repetition of every forward block, in FLOPs."""
    of_rows = work(w.ops)
    each = np.maximum(of_rows.flops, _FLOPS_PER_BYTE * of_rows.bytes) * w.ops.column("count") * (w.phase == FORWARD)
    return w.per_block(each)


@compiled
def _deal(cost: Floats, repeats: Floats, dealt: Floats) -> None:
    """Layers of c configurations, [c, blocks], dealt to stages, [stages, c, blocks], the largest as small as can be."""
    for k in range(len(cost)):
        whole = np.sum(cost[k] * repeats[k])
        low, high = max(np.max(cost[k]), whole / len(dealt)), whole
        found = _filled(cost[k], repeats[k], high, dealt[:, k])
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            if _filled(cost[k], repeats[k], middle, dealt[:, k]):
                found, high = True, middle
            else:
                low = middle
        if found:
            _filled(cost[k], repeats[k], high, dealt[:, k])
        else:
            dealt[:, k] = 0.0
            dealt[0, k] = repeats[k]


@compiled
def _filled(cost: Floats, repeats: Floats, most: float, dealt: Floats) -> bool:
    """Layers dealt in order, none of the stages, [stages, blocks], over `most`; False where they do not fit."""
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
