"""Why `auto` answers what it does for an operator: the physics term by term, and what each learned model adds.

An answer is the physics under fitted constants times exp(fading x sum of weight x log correction), never under the
hardware limit. Of an operator that is launched in another way than what was learned from, only its work is corrected,
and the work is what the logarithms are of (app.predictors.auto.operators.model). Seconds, Hz, bytes and FLOPs of one
repetition.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from app.ops.kinds import kinds_of, work_of
from app.ops.tiles import CANDIDATES, TRANSFORMED, wave_efficiency
from app.predictors.auto.operators.model import Learned, Traced
from app.predictors.auto.operators.physics.analytic_model import (
    COMPUTE_S,
    DRAM_S,
    L2_S,
    LEAST,
    LIMIT,
    LINK_S,
    OVERHEAD,
    run_state,
)
from app.predictors.auto.operators.physics.clock_model import sustained_clocks
from app.predictors.auto.operators.physics.physics_fit import NEUTRAL
from app.predictors.auto.operators.queries import MEMBERS
from app.predictors.intervals.groups import S_MEASURED, SITUATIONS, situations_of
from app.predictors.priors import BY_KIND
from app.tables.gpus import GpuTable
from app.tables.ops import OpTable
from app.tables.predictions import Predictions

_SCALED = (OVERHEAD, LEAST, COMPUTE_S, DRAM_S, L2_S, LINK_S)


class Roof(NamedTuple):
    """Where an operator stands under the sustained roofline; NaN where it is not defined.

    intensity      FLOP per byte that it moves
    ridge          FLOP per byte from which the pipe bounds it
    flop_per_s, bytes_per_s  sustained rates of its pipe and of DRAM
    compute_share  of the sustained rate that it attains
    dram_share     of the sustained DRAM bandwidth, by the bytes that did not stay in the L2
    """

    intensity: float
    ridge: float
    flop_per_s: float
    bytes_per_s: float
    compute_share: float
    dram_share: float


class Tile(NamedTuple):
    """The candidate tile that reaches most of the peak: its blocks, their waves over the SMs, the part of these busy.

    Waves of whole tiles; more SMs are busy where the summed dimension may be cut (app.ops.tiles).
    """

    rows: int
    columns: int
    blocks: float
    waves: float
    wave_efficiency: float


class Physics(NamedTuple):
    """Seconds that each part takes under the fitted constants (`physics.analytic_model`)."""

    overhead: float
    least: float
    compute: float
    dram: float
    l2: float
    link: float
    limit: float


class Member(NamedTuple):
    """A part of the answer: `source` physics, own, sibling, shared or measured; of a learned one the GPU it is of.

    latency_s is what it says alone, at full weight.
    """

    source: str
    gpu: str | None
    weight: float
    log_correction: float
    latency_s: float


class Explanation(NamedTuple):
    """One operator on one GPU.

    situation  a name of SITUATIONS
    learned    dtype of the cell that answers; None where nothing was learned
    clock_hz   sustained clock of its pipe, NaN where the GPU has none or its clock is not known
    fading     part of the corrections that is left at its distance from the shapes learned from
    whole      whether corrections apply to the whole time, not to the work alone
    """

    situation: str
    learned: str | None
    clock_hz: float
    roof: Roof
    tile: Tile | None
    physics: Physics
    members: tuple[Member, ...]
    fading: float
    whole: bool


def explained(learned: Learned, ops: OpTable, gpus: GpuTable, target: int, answer: Predictions) -> list[Explanation]:
    """Every row of `ops` on GPU row `target`, whose `answer` [n] came from `learned`."""
    found = learned.traced(ops, gpus, np.arange(len(ops)), np.full(len(ops), target))
    trace, keys = found.trace, learned.cells_behind(found)
    clocks, flops = sustained_clocks(found.gpus), work_of(ops, kinds_of(ops)).flops
    situation = situations_of(answer.group)
    told = []
    for q, key in enumerate(keys):
        latency_s = float(answer.latency_s[q])
        members = list(_members(found, q, learned.home_of_model))
        if situation[q] == S_MEASURED:
            members = [member._replace(weight=0.0) for member in members]
            members.append(Member("measured", found.gpus.ids[found.gpu[q]], 1.0, 0.0, latency_s))
        told.append(
            Explanation(
                SITUATIONS[situation[q]],
                None if key is None else key[1],
                float(clocks[run_state(found.rows.op_features, q), ops.dtype[q], found.gpu[q]]),
                _roof(found, q, float(flops[q]), latency_s),
                _tile(found, q),
                _physics(found, q),
                tuple(members),
                float(trace.fading[q]),
                bool(trace.whole[q]),
            )
        )
    return told


def _members(found: Traced, q: int, homes: Sequence[str | None]) -> Iterator[Member]:
    """The physics, and every model that corrects it; `homes` are the GPUs that models are of."""
    trace, gpu_models, cell, gpu = found.trace, found.gpu_models, found.trace.cell[q], found.gpu[q]
    yield Member("physics", None, 1.0, 0.0, float(trace.physics_s[q]))
    for k in range(MEMBERS if cell >= 0 else 0):
        if (model := gpu_models.member[cell, gpu, k]) >= 0:
            home = homes[model]
            source = "shared" if home is None else "own" if home == found.gpus.ids[gpu] else "sibling"
            said = (gpu_models.weight[cell, gpu, k], trace.correction[k, q], trace.member_s[k, q])
            yield Member(source, home, *(float(figure) for figure in said))


def _physics(found: Traced, q: int) -> Physics:
    """Terms times their constants, of which those of the launch go for the same kind of launch; the limit has none."""
    cell, terms = found.trace.cell[q], found.rows.terms
    factors = found.gpu_models.factors[cell, found.gpu[q]] if cell >= 0 else NEUTRAL
    constants = factors if found.trace.whole[q] else np.append(NEUTRAL[:2], factors[2:])
    scaled: list[float] = (terms[list(_SCALED), q] * constants).tolist()
    return Physics(*[*scaled, float(terms[LIMIT, q])])


def _tile(found: Traced, q: int) -> Tile | None:
    cell, tile, gpu = found.trace.cell[q], found.trace.tile[q], found.gpu[q]
    if tile < 0:
        return None
    op_features, sms = found.rows.op_features, float(found.gpus.column("sm_count")[gpu])
    whole = bool(cell >= 0 and found.gpu_models.tile[cell, gpu] >= 0)
    blocks = float(op_features.blocks[tile, q])
    another = tile < len(op_features.transformed) and bool(op_features.transformed[:, q].any())
    height, width = (TRANSFORMED if another else CANDIDATES)[tile].astype(int).tolist()
    return Tile(
        height, width, blocks, blocks / sms, float(wave_efficiency(blocks, float(op_features.splits[q]), sms, whole))
    )


def _roof(found: Traced, q: int, flops: float, latency_s: float) -> Roof:
    op_features, devices, gpu = found.rows.op_features, found.rows.devices, found.gpu[q]
    rate = float(devices.rates[run_state(op_features, q), op_features.dtype[q], gpu])
    bandwidth, moved = float(devices.bandwidth[gpu]), float(op_features.moved[q])
    # Its time at full bandwidth: the term has the family's share in it.
    dram_s = float(found.trace.dram_s[q] * BY_KIND[op_features.kind[q], 1])
    with np.errstate(divide="ignore", invalid="ignore"):
        intensity = flops / moved if moved else np.nan
        shares = np.array([flops / rate, dram_s]) / latency_s
    return Roof(intensity, rate / bandwidth, rate, bandwidth, *shares.tolist())
