"""Answers of learned operators, many at once: physics under fitted constants, and what models say it misses."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.predictors.auto.operators.models.features import DEVICES, EAGER, FEATURES, LIBRARY, fill_features
from app.predictors.auto.operators.models.packed import Packed, Recipes
from app.predictors.auto.operators.models.per_operator import MOST_KIN
from app.predictors.auto.operators.models.sibling_transfer import busier, cut_s, dram_scale
from app.predictors.auto.operators.models.smooth import add_smooth
from app.predictors.auto.operators.models.tree_sums import BLOCK, add_trees
from app.predictors.auto.operators.physics.analytic_model import (
    ANY_TILE,
    COMPUTE_S,
    DRAM_S,
    LIMIT,
    TERMS,
    Devices,
    bound_of,
    composed,
    fill_terms,
)
from app.predictors.auto.operators.physics.operator_features import Traits
from app.predictors.auto.operators.physics.physics_fit import FACTORS, scaled_s, scaled_work_s
from app.predictors.intervals.conformal import (
    S_CALIBRATED,
    S_SEEN,
    S_SEEN_OUTSIDE,
    S_SIBLING,
    S_UNSEEN,
    S_UNSEEN_OUTSIDE,
    S_UNTRAINED,
    operator_codes,
)
from app.predictors.priors import IS_COLLECTIVE
from app.runtime.compiled import compiled

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Ints = NDArray[np.intp]

MEMBERS = MOST_KIN + 1
# How fast what was learned fades out of the range it was learned in, per factor of e.
FADING = 0.1
# An answer further out of the range learned from errs more: its interval grows by this part per factor of e.
STRETCH = 0.25
# Part of its bytes in which a row that two L2s keep alike may differ.
KEPT_ALIKE = 0.1
# How far out of a range a shape may be, as features are rounded.
_ROUNDED = 1e-3
# Further than any size, as a logarithm: the kernels of one library say less of another's than of messages of any size.
_OTHER_LIBRARY = 100.0

_group_of = compiled(operator_codes)


@compiled
def fill_answers(  # noqa: PLR0913, PLR0917  (compiled code takes arrays, not tables)
    shape: Singles,
    traits: Traits,
    devices: Devices,
    asked: tuple[Ints, Ints, Ints, Ints, Ints, Floats],
    terms: Floats,
    packed: Packed,
    recipes: Recipes,
    times: tuple[Floats, Floats],
    codes: tuple[Ints, Ints, Ints],
) -> None:
    """Queries in `order`, as many of one cell and GPU at once as there are; their physics go into `terms`.

    Asked (i, j, order, twin, other, share): each is corrected as query `twin[q]`, most as themselves, and by `share[q]`
    as query `other[q]`.
    """
    i, j, order = asked[0], asked[1], asked[2]
    cells = cells_of(shape, (traits.kind, traits.dtype), (i, j), packed, recipes)
    fill_terms(traits, devices, (i, j), _tiles_of(cells, j, recipes), terms)
    far, correction, neutral, first = np.empty(BLOCK), np.empty(BLOCK), np.ones(FACTORS), 0
    everywhere = (np.full(EAGER + 1, -np.inf), np.full(EAGER + 1, np.inf))
    while first < len(order):
        block = order[first : first + _together(traits, (i, j, order), cells, first)]
        row, gpu, cell = i[block[0]], j[block[0]], cells[block[0]]
        kind, dtype = traits.kind[row], traits.dtype[row]
        situation, most, teacher, factors, reach = S_UNTRAINED, np.inf, -1, neutral, everywhere
        if cell >= 0:
            situation, teacher = recipes.situation[cell, gpu], recipes.teacher[cell, gpu, 0]
            factors, reach = recipes.factors[cell, gpu], (packed.low[cell], packed.high[cell])
            most = most_devices(recipes, cell, gpu) if IS_COLLECTIVE[kind] else np.inf
        _fill_far(shape, i, block, reach, far)
        correction[: len(block)] = 0.0
        if cell >= 0:
            _add_corrections(shape, traits, devices, asked, terms, packed, recipes, cell, block, far, correction)
        told_in = dtype if cell == recipes.cell[kind, dtype, 0] else recipes.dtype[cell]
        known, unlike = (situation, recipes.lent[kind, dtype], most), (traits.backward, traits.burst)
        _fill_codes(shape, unlike, i, block, terms, known, (kind, told_in), far, codes)
        if teacher >= 0:
            _put_right(traits, devices, i, block, terms, recipes, (cell, gpu, teacher), factors, correction)
        _fill_times(shape, i, block, terms, reach, factors, far, correction, times)
        first += len(block)


@compiled
def _fill_far(shape: Singles, i: Ints, block: Ints, reach: tuple[Floats, Floats], far: Floats) -> None:
    """How far each row of a block is out of `reach`, the range (low, high) learned from."""
    for k in range(len(block)):
        far[k] = beyond(shape, i[block[k]], reach[0], reach[1])


@compiled
def _add_corrections(  # noqa: PLR0913, PLR0917
    shape: Singles,
    traits: Traits,
    devices: Devices,
    asked: tuple[Ints, Ints, Ints, Ints, Ints, Floats],
    terms: Floats,
    packed: Packed,
    recipes: Recipes,
    cell: int,
    block: Ints,
    far: Floats,
    correction: Floats,
) -> None:
    """Add what a cell's models say of each query of a block, in log space, fading out of its range."""
    (i, j, _, twin, other, share), count = asked, len(block)
    gpu, ones = j[block[0]], twin[block]
    _add_models(shape, traits, devices, (i[ones], ones, gpu), terms, packed, recipes, cell, correction)
    if IS_COLLECTIVE[traits.kind[i[block[0]]]] and share[block].any():
        ones, more = other[block], np.zeros(count)
        _add_models(shape, traits, devices, (i[ones], ones, gpu), terms, packed, recipes, cell, more)
        correction[:count] += share[block] * (more - correction[:count])
    for k in range(count):
        if far[k] > 0.0:
            correction[k] *= np.exp(-FADING * beyond(shape, i[twin[block[k]]], packed.low[cell], packed.high[cell]))


@compiled
def _fill_codes(  # noqa: PLR0913, PLR0917
    shape: Singles,
    unlike: tuple[Floats, Floats],
    i: Ints,
    block: Ints,
    terms: Floats,
    known: tuple[int, bool, float],
    told: tuple[Any, Any],
    far: Floats,
    codes: tuple[Ints, Ints, Ints],
) -> None:
    """What bounds each query of a block, what supports its answer, and the group of its interval.

    `unlike`: flags of rows that none like them taught. `known`: the situation, whether it was lent by another dtype,
    and the most devices (as a logarithm) taught with: how a machine wires more is up to the machine. `told`: operator
    and dtype of what taught.
    """
    (bound, supported, group), (backward, burst) = codes, unlike
    usual, lent, most = known
    for k in range(len(block)):
        q = block[k]
        situation = _known(S_UNSEEN if shape[DEVICES, i[q]] > most else usual, far[k])
        situation = _stepped_back(situation, lent, backward[i[q]] > 0.0 or burst[i[q]] > 0.0)
        bound[q], supported[q] = bound_of(terms, q), _supporting(situation, far[k])
        group[q] = _group_of(told[0], told[1], situation)


@compiled
def _put_right(  # noqa: PLR0913, PLR0917
    traits: Traits,
    devices: Devices,
    i: Ints,
    block: Ints,
    terms: Floats,
    recipes: Recipes,
    on: tuple[int, int, int],
    factors: Floats,
    correction: Floats,
) -> None:
    """Put right the physics of a block that its cell, GPU and teacher (`on`) show to be others on this GPU."""
    cell, gpu, teacher = on
    edge, cut = recipes.edge[cell, gpu], busier(devices, traits.dtype[i[block[0]]], gpu, teacher)
    for k in range(len(block)):
        q = block[k]
        if edge != 1.0:
            in_turn = traits.between[i[q]] > 0.0
            terms[DRAM_S, q] *= dram_scale(traits.kind[i[q]], in_turn, factors, correction[k], edge)
        if cut:
            terms[COMPUTE_S, q] = cut_s(traits, i[q], devices, gpu, recipes.tile[cell, gpu], (factors, correction[k]))


@compiled
def _fill_times(  # noqa: PLR0913, PLR0917
    shape: Singles,
    i: Ints,
    block: Ints,
    terms: Floats,
    reach: tuple[Floats, Floats],
    factors: Floats,
    far: Floats,
    correction: Floats,
    times: tuple[Floats, Floats],
) -> None:
    """Seconds of each query of a block, and how much wider than usual its interval is."""
    latency, stretch = times
    for k in range(len(block)):
        q = block[k]
        alike = reach[0][EAGER] <= shape[EAGER, i[q]] <= reach[1][EAGER]
        latency[q], stretch[q] = corrected_s(terms, q, factors, correction[k], alike), 1.0 + STRETCH * far[k]


@compiled
def most_devices(recipes: Recipes, cell: int, gpu: int) -> float:
    """The logarithm of the most devices that a cell was taught with on a GPU, rounded up; infinite where none tells."""
    most = -np.inf
    for devices in recipes.devices[cell, gpu]:
        if np.isfinite(devices):
            most = devices + _ROUNDED
    return most if np.isfinite(most) else np.inf


@compiled
def _add_models(  # noqa: PLR0913, PLR0917
    shape: Singles,
    traits: Traits,
    devices: Devices,
    asked: tuple[Ints, Ints, int],
    terms: Floats,
    packed: Packed,
    recipes: Recipes,
    cell: int,
    total: Floats,
) -> None:
    """Add to `total` [m] what the models of a cell say of operator rows, whose terms are in columns `block`.

    `asked`: rows [m], block [m], and the GPU. A sibling's model is asked about the sibling itself.
    """
    rows, block, gpu = asked
    count, shown = len(rows), -1
    features = np.empty((FEATURES, count), dtype=np.float32)  # in one piece, to be read as vectors
    for k in range(MEMBERS):
        model, teacher = recipes.member[cell, gpu, k], recipes.teacher[cell, gpu, k]
        if model < 0:
            continue
        on = gpu if teacher < 0 else teacher
        if on != shown and on == gpu:
            for n in range(count):
                fill_features(shape, traits, devices, rows[n], gpu, terms, block[n], features, n)
        elif on != shown:
            fill_taught(shape, traits, devices, (rows, block, gpu, on), recipes.tile[cell, gpu], terms, features)
        shown, weight = on, recipes.weight[cell, gpu, k]
        total[:count] += weight * packed.mean[model]
        trees, edges = (packed.feature, packed.cut, packed.value), (packed.edge, packed.edges[model])
        add_trees(features, trees, edges, (packed.first[model], packed.stop[model]), weight, total[:count])
        points = slice(packed.begin[model], packed.end[model])
        smooth = (packed.column[model], packed.scale[model], packed.point[points], packed.weight[points])
        add_smooth(features, smooth, weight, total[:count])


@compiled
def fill_taught(
    shape: Singles,
    traits: Traits,
    devices: Devices,
    asked: tuple[Ints, Ints, int, int],
    only: int,
    terms: Floats,
    features: Singles,
) -> None:
    """Fill `features` [FEATURES, m] for operator rows, whose terms are in columns `block`, with a teacher's in mind.

    `asked`: rows [m], block [m], the GPU and its teacher. On the teacher, but for rows of which the L2 there keeps
    another part: what the teacher teaches of these is where its own L2 ends.
    """
    rows, block, gpu, teacher = asked
    there = np.empty((TERMS, len(rows)))
    fill_terms(traits, devices, (rows, np.full(len(rows), teacher)), np.full(len(rows), only), there)
    for n in range(len(rows)):
        bytes_here = terms[DRAM_S, block[n]] * devices.bandwidth[gpu]
        bytes_there = there[DRAM_S, n] * devices.bandwidth[teacher]
        if abs(bytes_here - bytes_there) <= KEPT_ALIKE * max(bytes_here, bytes_there):
            fill_features(shape, traits, devices, rows[n], teacher, there, n, features, n)
        else:
            fill_features(shape, traits, devices, rows[n], gpu, terms, block[n], features, n)


@compiled
def _together(traits: Traits, asked: tuple[Ints, Ints, Ints], cells: Ints, first: int) -> int:
    """How many queries from place `first` of the order are of one operator, dtype, cell and GPU, at most BLOCK."""
    i, j, order = asked
    one, stop = order[first], min(first + BLOCK, len(order))
    kind, dtype = traits.kind[i[one]], traits.dtype[i[one]]
    for place in range(first + 1, stop):
        q = order[place]
        if j[q] != j[one] or cells[q] != cells[one] or traits.kind[i[q]] != kind or traits.dtype[i[q]] != dtype:
            return place - first
    return stop - first


@compiled
def cells_of(
    shape: Singles, codes: tuple[Ints, Ints], asked: tuple[Ints, Ints], packed: Packed, recipes: Recipes
) -> Ints:
    """The cell that answers for operator row `i[q]` on GPU row `j[q]`, asked (i, j), -1 none, [n].

    `codes`: kind and dtype of every row. Of cells that may answer, the one whose range holds the row, or is nearest to
    it, a cell of its library before any other; of such the first if it knows the GPU itself, else the one that knows
    the GPU best.
    """
    (kind, dtype), (i, j), most = codes, asked, recipes.cell.shape[2]
    found = np.empty(len(i), dtype=np.intp)
    for q in range(len(i)):
        row, gpu = i[q], j[q]
        best = recipes.cell[kind[row], dtype[row], 0]
        if most > 1 and recipes.cell[kind[row], dtype[row], 1] >= 0:
            nearest, known = _distance(shape, row, packed, best), recipes.situation[best, gpu]
            if known <= S_CALIBRATED:
                known = 0
            for k in range(1, most):
                cell = recipes.cell[kind[row], dtype[row], k]
                if cell < 0:
                    break
                far, situation = _distance(shape, row, packed, cell), recipes.situation[cell, gpu]
                if far < nearest or (far == nearest and situation < known):
                    best, nearest, known = cell, far, situation
        found[q] = best
    return found


@compiled
def _distance(shape: Singles, row: int, packed: Packed, cell: int) -> float:
    """How far a collective is out of the range of a cell; of another library further than of any size."""
    low, high, library = packed.low[cell], packed.high[cell], shape[LIBRARY, row]
    other = max(low[LIBRARY] - library, library - high[LIBRARY], 0.0)
    return float(beyond(shape, row, low, high) + _OTHER_LIBRARY * other)


@compiled
def _tiles_of(cells: Ints, j: Ints, recipes: Recipes) -> Ints:
    """The only tile that kernels of a query's cell have on GPU row `j[q]`, or ANY_TILE, [n]."""
    only = np.full(len(cells), ANY_TILE)
    for q in range(len(cells)):
        if cells[q] >= 0:
            only[q] = recipes.tile[cells[q], j[q]]
    return only


@compiled
def _known(situation: int, far: float) -> int:
    """The situation of a row that is `far` out of the range learned from."""
    if far > 0.0 and situation in (S_SEEN, S_CALIBRATED):
        return S_SEEN_OUTSIDE
    return S_UNSEEN_OUTSIDE if far > 0.0 and situation == S_UNSEEN else situation


@compiled
def _stepped_back(situation: int, lent: bool, otherwise: bool) -> int:
    """A row corrected by what was learned of other rows is no better known than such: its interval says so."""
    if otherwise:
        return S_UNTRAINED
    return S_SIBLING if lent and situation in (S_SEEN, S_CALIBRATED) else situation


@compiled
def _supporting(situation: int, far: float) -> int:
    """What supports the answer: of a sibling out of range no interpolation, though its interval stays a sibling's."""
    return S_SEEN_OUTSIDE if far > 0.0 and situation == S_SIBLING else situation


@compiled
def beyond(shape: Singles, row: int, low: Floats, high: Floats) -> float:
    """How far the row's shape is out of the range learned from, as a logarithm; 0 inside."""
    far = 0.0
    for f in range(EAGER):
        far = max(far, low[f] - shape[f, row], shape[f, row] - high[f])
    return float(far) if far > _ROUNDED else 0.0


@compiled
def corrected_s(terms: Floats, q: int, factors: Floats, correction: float, alike: bool) -> float:
    """Seconds by physics under `factors` and a correction in log space; `alike`: launched as what was learned from."""
    if alike:
        return float(max(scaled_s(terms, q, factors) * np.exp(correction), terms[LIMIT, q]))
    # Launched in another way than the measurements: only what concerns the work carries over.
    work = scaled_work_s(terms, q, factors)
    work *= np.exp(correction * min(work / scaled_s(terms, q, factors), 1.0))
    return composed(terms, q, work)
