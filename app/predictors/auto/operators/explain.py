"""Explanation of an answer of `auto` for an operator: the terms of the physics, and the correction of each model.

An answer is the physics under fitted constants times exp(fading x sum of weight x log correction), at least the
hardware limit. For an operator launched otherwise than in training the corrections apply to its work only
(app.predictors.auto.operators.inference). Seconds, Hz, bytes and FLOPs of one repetition.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from app.bands.groups import S_MEASURED, SITUATIONS, situations_of
from app.ops import kinds_of, work_of
from app.ops.gemm import CANDIDATES, TRANSFORMED, wave_efficiency
from app.predictors.auto.operators.model import Learned, Traced
from app.predictors.auto.operators.queries import MEMBERS, Trace
from app.predictors.physics.analytic_model import COMPUTE_S, DRAM_S, L2_S, LEAST, LIMIT, LINK_S, OVERHEAD, run_state
from app.predictors.physics.clock_model import sustained_clocks
from app.predictors.physics.physics_fit import NEUTRAL
from app.predictors.priors import BY_KIND
from app.tables.arrays import Ints
from app.tables.gpus import GpuTable
from app.tables.ops import OpTable
from app.tables.predictions import Predictions

_SCALED = (OVERHEAD, LEAST, COMPUTE_S, DRAM_S, L2_S, LINK_S)


class Roof(NamedTuple):
    """Place of an operator under the sustained roofline; NaN where not defined.

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
    """The candidate tile with the highest rate: its size, blocks, waves over the SMs, and the share of busy SMs.

    Waves are of whole tiles; split-K keeps more SMs busy (app.ops.gemm).
    """

    rows: int
    columns: int
    blocks: float
    waves: float
    wave_efficiency: float


class Physics(NamedTuple):
    """Seconds of each term under the fitted constants (`physics.analytic_model`)."""

    overhead: float
    least: float
    compute: float
    dram: float
    l2: float
    link: float
    limit: float


class Member(NamedTuple):
    """A part of the answer: `source` physics, own, sibling, shared or measured; `gpu` the one its model is of.

    latency_s is its time alone, at full weight.
    """

    source: str
    gpu: str | None
    weight: float
    log_correction: float
    latency_s: float


class Explanation(NamedTuple):
    """Explanation of one operator on one GPU.

    situation  a name of SITUATIONS
    learned    dtype of the cell that answers; None without one
    clock_hz   sustained clock of its pipe, NaN where the GPU has none or its clock is not known
    fading     part of the corrections that is left at the extrapolation distance
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


def explained(learned: Learned, ops: OpTable, gpus: GpuTable, j: Ints, answer: Predictions) -> list[Explanation]:
    """Explanations [n] of row `q` of `ops` on GPU row `j[q]`, given the `answer` [n] of `learned`."""
    traced = learned.traced(ops, gpus, np.arange(len(ops)), j, Trace.of(len(ops)))
    trace, keys = traced.trace, learned.source_cells(traced)
    clocks, flops = sustained_clocks(traced.gpus), work_of(ops, kinds_of(ops)).flops
    situation = situations_of(answer.group)
    explanations = []
    for q, key in enumerate(keys):
        latency_s = float(answer.latency_s[q])
        members = list(_members(traced, q, learned.home_of_model))
        if situation[q] == S_MEASURED:
            members = [member._replace(weight=0.0) for member in members]
            members.append(Member("measured", traced.gpus.ids[traced.gpu[q]], 1.0, 0.0, latency_s))
        explanations.append(
            Explanation(
                SITUATIONS[situation[q]],
                None if key is None else key[1],
                float(clocks[run_state(traced.rows.op_features, q), ops.dtype[q], traced.gpu[q]]),
                _roof(traced, q, float(flops[q]), latency_s),
                _tile(traced, q),
                _physics(traced, q),
                tuple(members),
                float(trace.fading[q]),
                bool(trace.whole[q]),
            )
        )
    return explanations


def _members(traced: Traced, q: int, homes: Sequence[str | None]) -> Iterator[Member]:
    """The physics, and every model that corrects it; `homes` are the GPUs of the models, None of shared ones."""
    trace, gpu_models, cell, gpu = traced.trace, traced.gpu_models, traced.trace.cell[q], traced.gpu[q]
    yield Member("physics", None, 1.0, 0.0, float(trace.physics_s[q]))
    for k in range(MEMBERS):
        if (model := gpu_models.member[cell, gpu, k]) >= 0:
            home = homes[model]
            source = "shared" if home is None else "own" if home == traced.gpus.ids[gpu] else "sibling"
            values = (gpu_models.weight[cell, gpu, k], trace.correction[k, q], trace.member_s[k, q])
            yield Member(source, home, *(float(figure) for figure in values))


def _physics(traced: Traced, q: int) -> Physics:
    """Terms times their constants; launch constants only for launches as in training, the limit has none."""
    terms, factors = traced.rows.terms, traced.gpu_models.factors[traced.trace.cell[q], traced.gpu[q]]
    constants = factors if traced.trace.whole[q] else np.append(NEUTRAL[:2], factors[2:])
    scaled: list[float] = (terms[list(_SCALED), q] * constants).tolist()
    return Physics(*[*scaled, float(terms[LIMIT, q])])


def _tile(traced: Traced, q: int) -> Tile | None:
    cell, tile, gpu = traced.trace.cell[q], traced.trace.tile[q], traced.gpu[q]
    if tile < 0:
        return None
    op_features, sms = traced.rows.op_features, float(traced.gpus.column("sm_count")[gpu])
    whole = bool(traced.gpu_models.tile[cell, gpu] >= 0)
    blocks = float(op_features.blocks[tile, q])
    another = tile < len(op_features.transformed) and bool(op_features.transformed[:, q].any())
    height, width = (TRANSFORMED if another else CANDIDATES)[tile].astype(int).tolist()
    return Tile(
        height, width, blocks, blocks / sms, float(wave_efficiency(blocks, float(op_features.splits[q]), sms, whole))
    )


def _roof(traced: Traced, q: int, flops: float, latency_s: float) -> Roof:
    op_features, devices, gpu = traced.rows.op_features, traced.rows.devices, traced.gpu[q]
    rate = float(devices.rates[run_state(op_features, q), op_features.dtype[q], gpu])
    bandwidth, moved = float(devices.bandwidth[gpu]), float(op_features.moved[q])
    # Time at full bandwidth: the term includes the family's share.
    dram_s = float(traced.trace.dram_s[q] * BY_KIND[op_features.kind[q], 1])
    with np.errstate(divide="ignore", invalid="ignore"):
        intensity = flops / moved if moved else np.nan
        shares = np.array([flops / rate, dram_s]) / latency_s
    return Roof(intensity, rate / bandwidth, rate, bandwidth, *shares.tolist())
