"""Cutting a network into pipeline stages: whole layers, in order, so that the largest stage is as small as can be."""

from __future__ import annotations

import numpy as np

from app.ops.kinds import kinds_of, work_of
from app.tables.workload import FORWARD, Floats, Workload

# FLOPs in whose time a device moves a byte: about what tensor cores and HBM give in 16 bits. Layers of a transformer
# are alike, so it matters little: only the embedding and the head differ from them.
_FLOPS_PER_BYTE = 100.0
_HALVINGS = 50
# Of a layer, by which a stage may be over what it has room for: rounding.
_TOLERANCE = 1e-9


def stage_repeats(w: Workload, stages: int) -> Floats:
    """How often each forward block runs on each stage, float64 [stages, blocks]; too few layers leave some empty."""
    repeats = w.repeats[..., : w.blocks]
    if stages == 1:
        return repeats[None]
    cost = _costs(w)
    low, high = max(float(cost.max()), float(repeats @ cost) / stages), float(repeats @ cost)
    best = _filled(cost, repeats, stages, high)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        dealt = _filled(cost, repeats, stages, middle)
        if dealt is None:
            low = middle
        else:
            best, high = dealt, middle
    return best if best is not None else np.vstack([repeats, np.zeros((stages - 1, len(repeats)))])


def _costs(w: Workload) -> Floats:
    """Of one repetition of every forward block, in FLOPs."""
    work = work_of(w.ops, kinds_of(w.ops))
    each = np.maximum(work.flops, _FLOPS_PER_BYTE * work.bytes) * w.ops.column("count") * (w.phase == FORWARD)
    return w.per_block(each)


def _filled(cost: Floats, repeats: Floats, stages: int, most: float) -> Floats | None:
    """Layers dealt in order, none of the stages over `most`; None where they do not fit."""
    dealt = np.zeros((stages, len(cost)))
    stage, room = 0, most
    for block, (each, layers) in enumerate(zip(cost.tolist(), repeats.tolist(), strict=True)):
        if each == 0:
            dealt[stage, block] = layers
            continue
        fits = np.floor(most / each + _TOLERANCE)
        if fits < 1:
            return None
        here = min(layers, max(np.floor(room / each + _TOLERANCE), 0.0))
        dealt[stage, block] = here
        room -= here * each
        if layers > here:
            more = int(np.ceil((layers - here) / fits))
            if stage + more >= stages:
                return None
            dealt[stage + 1 : stage + more, block] = fits
            stage += more
            dealt[stage, block] = layers - here - (more - 1) * fits
            room = most - dealt[stage, block] * each
    return dealt
