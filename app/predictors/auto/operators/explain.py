"""Why `auto` answers what it does for an operator: the physics term by term, and what each learned model adds.

An answer is the physics under fitted constants times exp(fading x sum of weight x log correction), never under the
hardware limit. Of an operator that is launched in another way than what was learned from, only its work is corrected,
and the work is what the logarithms are of (operators.model). Seconds, Hz, bytes and FLOPs of one
repetition.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.ops import OP_CODE
from app.ops.kinds import kinds_of, work_of
from app.ops.tiles import CANDIDATES, TRANSFORMED, wave_efficiency
from app.predictors.auto.operators.inference import FADING, MEMBERS, beyond, corrected_s, fill_taught
from app.predictors.auto.operators.model import CellKey, Learned, lent_with_care, unsteady
from app.predictors.auto.operators.models.features import EAGER, FEATURES, shape_features
from app.predictors.auto.operators.models.per_operator import Cell, Recipe
from app.predictors.auto.operators.models.sibling_transfer import busier, cut_s, dram_scale, edges
from app.predictors.auto.operators.models.training_samples import fill_all, makes_of
from app.predictors.auto.operators.physics.analytic_model import (
    COMPUTE_S,
    DRAM_S,
    L2_S,
    LEAST,
    LIMIT,
    LINK_S,
    OVERHEAD,
    TERMS,
    Devices,
    best_tile,
    devices_of,
    fill_terms,
    run_state,
)
from app.predictors.auto.operators.physics.clock_model import sustained_clocks
from app.predictors.auto.operators.physics.operator_features import Traits, products_of, traits_of
from app.predictors.auto.operators.physics.physics_fit import NEUTRAL, scaled_s, scaled_work_s
from app.predictors.intervals.conformal import GROUPS, S_MEASURED, S_SIBLING, SITUATIONS
from app.predictors.links import linked
from app.predictors.priors import BY_KIND, IS_COLLECTIVE
from app.tables.gpus import COLUMN_INDEX, GpuTable
from app.tables.ops import DTYPES, OpTable
from app.tables.predictions import Predictions

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Ints = NDArray[np.intp]

_SMS = COLUMN_INDEX["sm_count"]
_NOTHING = Recipe(NEUTRAL, (), 0)
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
    """Seconds that each part takes under the fitted constants (physics.analytic_model)."""

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


class _Rows(NamedTuple):
    """Rows on one GPU, as the predictor sees them; `flops` [n] as asked, not as kernels do them."""

    kind: Ints
    dtype: Ints
    flops: Floats
    traits: Traits
    devices: Devices
    shape: Singles
    terms: Floats
    features: Singles


def explained(learned: Learned, ops: OpTable, gpus: GpuTable, target: int, answer: Predictions) -> list[Explanation]:
    """Every row of `ops` on GPU row `target`, whose `answer` [n] came from `learned`."""
    gpus, on = linked(ops, gpus, np.arange(len(ops)), np.full(len(ops), target))
    if (on == target).all():
        return _explained(learned, ops, gpus, target, (answer.group, answer.latency_s))
    found: dict[int, Explanation] = {}
    for gpu in np.unique(on).tolist():
        rows = np.flatnonzero(on == gpu)
        told = _explained(learned, ops.take(rows), gpus, gpu, (answer.group[rows], answer.latency_s[rows]))
        found |= dict(zip(rows.tolist(), told, strict=True))
    return [found[q] for q in range(len(ops))]


def _explained(
    learned: Learned, ops: OpTable, gpus: GpuTable, target: int, answer: tuple[Ints, Floats]
) -> list[Explanation]:
    """As `explained`, over one link; `answer` is groups of intervals and seconds, [n] each."""
    group, latency_s = answer
    clocks = sustained_clocks(gpus)[:, :, target]
    gpu, slowed = gpus.ids[target], unsteady(gpus)
    makes = [makes_of(gpus, collective=sends)[target] for sends in (False, True)]
    emulating = learned.emulating(gpus)
    corrected = learned.as_corrected(ops, gpus, target)
    keys, share = corrected.keys, corrected.share
    told = [
        _told(learned, key, dtype, (gpu, makes, slowed, emulating))
        for key, dtype in zip(keys, ops.dtype.tolist(), strict=True)
    ]
    tile = np.array([recipe.tile for recipe in told], dtype=np.intp)
    # Models are asked about rows that were learned from, `held` (collectives.extrapolation); what they correct
    # is the physics of the rows themselves.
    rows, held = (_rows(table, gpus, target, tile) for table in (ops, corrected.one))
    more = _rows(corrected.other, gpus, target, tile) if share.any() else held
    situation = (group - len(GROUPS)) % len(SITUATIONS)
    found = []
    for q in range(len(ops)):
        key, recipe = keys[q], told[q]
        cell = None if key is None else learned.cells[key]
        fading, whole = _reach(held, q, cell)
        roof = _roof(rows, q, target, float(latency_s[q]))
        said = _corrections(held, q, recipe, cell, gpus, target)
        if share[q] > 0.0:
            also = _corrections(more, q, recipe, cell, gpus, target)
            said = [one.mixed(other, float(share[q])) for one, other in zip(said, also, strict=True)]
        _fill_as_taught(rows, q, recipe, said, fading, gpus, target)
        members = list(_members(rows, q, recipe, (fading, whole), said, gpu))
        if situation[q] == S_MEASURED:
            members = [member._replace(weight=0.0) for member in members]
            members.append(Member("measured", gpu, 1.0, 0.0, float(latency_s[q])))
        found.append(
            Explanation(
                list(SITUATIONS)[situation[q]],
                None if key is None else key[1],
                float(clocks[run_state(rows.traits, q), ops.dtype[q]]),
                roof,
                _tile(rows, q, target, recipe.tile),
                _physics(rows, q, recipe.factors, whole),
                tuple(members),
                fading,
                whole,
            )
        )
    return found


def _told(
    learned: Learned, key: CellKey | None, dtype: int, on: tuple[str, Sequence[str], frozenset[str], frozenset[str]]
) -> Recipe:
    """What cell `key` answers with for a dtype (code).

    `on`: a GPU, its make, plain and as collectives see it, the GPUs whose clock is up to their temperature, and those
    that emulate.
    """
    gpu, makes, slowed, emulating = on
    if key is None:
        return _NOTHING
    without = emulating if lent_with_care(key, DTYPES[dtype]) else frozenset()
    return learned.recipe(key, gpu, makes[int(IS_COLLECTIVE[OP_CODE[key[0]]])], slowed, without)


def _rows(ops: OpTable, gpus: GpuTable, target: int, tile: Ints) -> _Rows:
    n, kinds, devices = len(ops), kinds_of(ops), devices_of(gpus)
    products, on = products_of(kinds), np.full(len(ops), target)
    traits, shape = traits_of(ops, kinds, products), shape_features(kinds, products, n)
    terms, features = np.empty((TERMS, n)), np.empty((FEATURES, n), dtype=np.float32)
    fill_terms(traits, devices, (np.arange(n), on), tile, terms)
    fill_all(shape, traits, devices, on, terms, features)
    return _Rows(ops.kind, ops.dtype, work_of(ops, kinds).flops, traits, devices, shape, terms, features)


def _reach(rows: _Rows, q: int, cell: Cell | None) -> tuple[float, bool]:
    """Part of the corrections that is left, and whether they apply to the whole time."""
    if cell is None:
        return 1.0, True
    far = beyond(rows.shape, q, cell.low, cell.high)
    return float(np.exp(-FADING * far)), bool(cell.low[EAGER] <= rows.shape[EAGER, q] <= cell.high[EAGER])


class _Said(NamedTuple):
    """What a model says: the logarithm of its correction, the GPU it is of, and that one's row if it is a teacher."""

    correction: float
    home: str | None
    teacher: int | None

    def mixed(self, other: _Said, share: float) -> _Said:
        """What it says where another row's makes `share` of it."""
        return self._replace(correction=self.correction + share * (other.correction - self.correction))


def _corrections(rows: _Rows, q: int, recipe: Recipe, cell: Cell | None, gpus: GpuTable, target: int) -> list[_Said]:
    """What every model of the recipe says, a sibling's about the row on the sibling itself."""
    known = () if cell is None else (*cell.lenders.items(), *cell.own.items())
    own = {id(model): name for name, model in known}
    here, said = np.ascontiguousarray(rows.features[:, q : q + 1]), []
    for model, _ in recipe.members[:MEMBERS]:
        name, feature, teacher = own.get(id(model)), here, None
        if recipe.situation == S_SIBLING and name in gpus.ids:
            teacher, feature = gpus.ids.index(name), np.empty_like(here)
            asked = (np.array([q]), np.array([q]), target, teacher)
            fill_taught(rows.shape, rows.traits, rows.devices, asked, recipe.tile, rows.terms, feature)
        correction = float((model.mean + model.trees.sum(feature) + model.smooth.sum(feature))[0])
        said.append(_Said(correction, name, teacher))
    return said


def _fill_as_taught(
    rows: _Rows, q: int, recipe: Recipe, said: Sequence[_Said], fading: float, gpus: GpuTable, target: int
) -> None:
    """Put what goes unlike on a GPU than on its teachers into the terms (models.sibling_transfer)."""
    teachers = np.array([one.teacher for one in said if one.teacher is not None], dtype=np.intp)
    if len(teachers):
        total = sum(weight * one.correction for (_, weight), one in zip(recipe.members, said, strict=False))
        edge = float(np.exp((edges(gpus)[target] - edges(gpus)[teachers]).mean()))
        correction, in_turn = total * fading, bool(rows.traits.between[q] > 0.0)
        rows.terms[DRAM_S, q] *= dram_scale(rows.kind[q], in_turn, recipe.factors, correction, edge)
        if busier(rows.devices, rows.dtype[q], target, int(teachers[0])):
            told = (recipe.factors, correction)
            rows.terms[COMPUTE_S, q] = cut_s(rows.traits, q, rows.devices, target, recipe.tile, told)


def _members(
    rows: _Rows, q: int, recipe: Recipe, reach: tuple[float, bool], said: Sequence[_Said], gpu: str
) -> Iterator[Member]:
    """The physics, and every model that corrects it; `reach` as `_reach` says."""
    fading, whole = reach
    yield Member("physics", None, 1.0, 0.0, float(corrected_s(rows.terms, q, recipe.factors, 0.0, whole)))
    work_s, physics_s = (float(seconds(rows.terms, q, recipe.factors)) for seconds in (scaled_work_s, scaled_s))
    share = 1.0 if whole else min(work_s / physics_s, 1.0)
    for (_, weight), one in zip(recipe.members, said, strict=False):
        source = "shared" if one.home is None else "own" if one.home == gpu else "sibling"
        alone = corrected_s(rows.terms, q, recipe.factors, one.correction * fading, whole)
        yield Member(source, one.home, float(weight), one.correction * share, float(alone))


def _physics(rows: _Rows, q: int, factors: Floats, whole: bool) -> Physics:
    """Terms times their constants, of which those of the launch go for the same kind of launch; the limit has none."""
    constants = factors if whole else np.append(NEUTRAL[:2], factors[2:])
    scaled: list[float] = (rows.terms[list(_SCALED), q] * constants).tolist()
    return Physics(*[*scaled, float(rows.terms[LIMIT, q])])


def _tile(rows: _Rows, q: int, target: int, only: int) -> Tile | None:
    traits, sms = rows.traits, float(rows.devices.figures[_SMS, target])
    tile, _ = best_tile(traits, q, rows.devices, target, only)
    if tile < 0:
        return None
    efficiency = wave_efficiency(float(traits.blocks[tile, q]), float(traits.splits[q]), sms, only >= 0)
    another = tile < len(traits.transformed) and bool(traits.transformed[:, q].any())
    height, width = (TRANSFORMED if another else CANDIDATES)[tile].astype(int).tolist()
    return Tile(height, width, float(traits.blocks[tile, q]), float(traits.blocks[tile, q]) / sms, float(efficiency))


def _roof(rows: _Rows, q: int, target: int, latency_s: float) -> Roof:
    traits, kind, dtype = rows.traits, rows.kind[q], rows.dtype[q]
    rate = float(rows.devices.rates[run_state(traits, q), dtype, target])
    bandwidth = float(rows.devices.bandwidth[target])
    flops, moved = float(rows.flops[q]), float(traits.moved[q])
    # Its time at full bandwidth: the term has the family's share in it.
    dram_s = float(rows.terms[DRAM_S, q] * BY_KIND[kind, 1])
    with np.errstate(divide="ignore", invalid="ignore"):
        intensity = flops / moved if moved else np.nan
        shares = np.array([flops / rate, dram_s]) / latency_s
    return Roof(intensity, rate / bandwidth, rate, bandwidth, *shares.tolist())
