"""Explanation of an answer of `auto` for an operator: the terms of the physics, and the correction of each model.

An answer is the physics under fitted constants times exp(fading x sum of weight x log correction), at least the
hardware limit. For an operator launched otherwise than in training the corrections apply to its work only
(app.predictors.auto.operators.inference). Seconds, Hz, bytes and FLOPs of one repetition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from app.bands.groups import S_MEASURED, SITUATIONS, situations_of
from app.ops import kinds_of, work_of
from app.ops.gemm import CANDIDATES, TRANSFORMED, wave_efficiency
from app.predictors.auto.operators.model import Learned, Traced
from app.predictors.auto.operators.queries import Trace
from app.predictors.physics.analytic_model import COMPUTE_S, DRAM_S, L2_S, LEAST, LIMIT, LINK_S, OVERHEAD, run_states
from app.predictors.physics.clock_model import sustained_clocks
from app.predictors.physics.physics_fit import NEUTRAL
from app.predictors.priors import BY_KIND
from app.tables.arrays import Floats, Ints
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
    trace, states = traced.trace, run_states(traced.rows.op_features, len(ops))
    situation, latency_s = situations_of(answer.group), answer.latency_s.tolist()
    members = _members(traced, learned.home_of_model)
    for q in np.flatnonzero(situation == S_MEASURED).tolist():
        measured = Member("measured", traced.gpus.ids[traced.gpu[q]], 1.0, 0.0, latency_s[q])
        members[q] = (*(member._replace(weight=0.0) for member in members[q]), measured)
    columns = (
        [SITUATIONS[code] for code in situation.tolist()],
        [None if key is None else key[1] for key in learned.source_cells(traced)],
        sustained_clocks(traced.gpus)[states, ops.dtype, traced.gpu].tolist(),
        _roofs(traced, states, work_of(ops, kinds_of(ops)).flops, answer.latency_s),
        _tiles(traced),
        _physics(traced),
        members,
        trace.fading.tolist(),
        trace.whole.tolist(),
    )
    return [Explanation(*row) for row in zip(*columns, strict=True)]


def _members(traced: Traced, homes: Sequence[str | None]) -> list[tuple[Member, ...]]:
    """The physics, and every model that corrects it; `homes` are the GPUs of the models, None of shared ones."""
    trace, ids = traced.trace, traced.gpus.ids
    models, weights = (
        part[trace.cell, traced.gpu].tolist() for part in (traced.gpu_models.member, traced.gpu_models.weight)
    )
    corrections, seconds = trace.correction.T.tolist(), trace.member_s.T.tolist()
    members = []
    for q, (gpu, physics_s) in enumerate(zip(traced.gpu.tolist(), trace.physics_s.tolist(), strict=True)):
        row = [Member("physics", None, 1.0, 0.0, physics_s)]
        for model, *figures in zip(models[q], weights[q], corrections[q], seconds[q], strict=True):
            if model >= 0:
                home = homes[model]
                source = "shared" if home is None else "own" if home == ids[gpu] else "sibling"
                row.append(Member(source, home, *figures))
        members.append(tuple(row))
    return members


def _physics(traced: Traced) -> list[Physics]:
    """Terms times their constants; launch constants only for launches as in training, the limit has none."""
    terms, trace = traced.rows.terms[:, : len(traced.gpu)], traced.trace
    constants = traced.gpu_models.factors[trace.cell, traced.gpu]
    constants[~trace.whole, :2] = NEUTRAL[:2]
    scaled = terms[list(_SCALED)].T * constants
    return [Physics(*row) for row in np.column_stack((scaled, terms[LIMIT])).tolist()]


def _tiles(traced: Traced) -> list[Tile | None]:
    """The tiles of operators that have any."""
    op_features, tile = traced.rows.op_features, traced.trace.tile
    tiles: list[Tile | None] = [None] * len(tile)
    rows = np.flatnonzero(tile >= 0)
    best, gpu = tile[rows], traced.gpu[rows]
    another = (best < len(op_features.transformed)) & op_features.transformed[:, rows].any(axis=0)
    sizes = np.where(another[:, None], TRANSFORMED[np.where(another, best, 0)], CANDIDATES[best]).astype(int)
    blocks, sms = op_features.blocks[best, rows], traced.gpus.column("sm_count")[gpu]
    whole = traced.gpu_models.tile[traced.trace.cell[rows], gpu] >= 0
    used = zip(*(part.tolist() for part in (rows, sizes, blocks, op_features.splits[rows], sms, whole)), strict=True)
    for q, (height, width), count, splits, sm_count, is_whole in used:
        tiles[q] = Tile(height, width, count, count / sm_count, wave_efficiency(count, splits, sm_count, is_whole))
    return tiles


def _roofs(traced: Traced, states: Ints, flops: Floats, latency_s: Floats) -> list[Roof]:
    """Places [n] of operators that do `flops` [n] in their run states."""
    op_features, devices, gpu = traced.rows.op_features, traced.rows.devices, traced.gpu
    kind, dtype, moved = (part[: len(gpu)] for part in (op_features.kind, op_features.dtype, op_features.moved))
    rate, bandwidth = devices.rates[states, dtype, gpu], devices.bandwidth[gpu]
    # Time at full bandwidth: the term includes the family's share.
    dram_s = traced.trace.dram_s * BY_KIND[kind, 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        intensity = np.where(moved > 0.0, flops / moved, np.nan)
        shares = flops / rate / latency_s, dram_s / latency_s
        ridge = rate / bandwidth
    return [Roof(*row) for row in np.column_stack((intensity, ridge, rate, bandwidth, *shares)).tolist()]
