"""Answers of learned operators, many at once: physics under fitted constants, and what models say it misses."""

from __future__ import annotations

from typing import Any

import numpy as np

from app.predictors.auto.operators.models.features import DEVICES, EAGER, FEATURES, fill_features
from app.predictors.auto.operators.models.packed import Packed, Recipes
from app.predictors.auto.operators.models.ranges import beyond, cells_of, most_devices
from app.predictors.auto.operators.models.sibling_transfer import busier, cut_s, dram_scale
from app.predictors.auto.operators.models.smooth import add_smooth
from app.predictors.auto.operators.models.tree_sums import BLOCK, add_trees
from app.predictors.auto.operators.physics.analytic_model import (
    ANY_TILE,
    COMPUTE_S,
    DRAM_S,
    LIMIT,
    TERMS,
    best_tile,
    bound_of,
    composed,
    fill_terms,
)
from app.predictors.auto.operators.physics.operator_features import Traits
from app.predictors.auto.operators.physics.physics_fit import FACTORS, scaled_s, scaled_work_s
from app.predictors.auto.operators.queries import MEMBERS, Answers, Queries, Rows, Trace
from app.predictors.intervals.groups import (
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
from app.tables.arrays import Floats, Ints, Singles

# How fast what was learned fades out of the range it was learned in, per factor of e.
FADING = 0.1
# An answer further out of the range learned from errs more: its interval grows by this part per factor of e.
STRETCH = 0.25
# Part of its bytes in which a row that two L2s keep alike may differ.
KEPT_ALIKE = 0.1

_group_of = compiled(operator_codes)


@compiled
def fill_answers(
    rows: Rows, packed: Packed, recipes: Recipes, queries: Queries, answers: Answers, trace: Trace
) -> None:
    """Answer the queries in `order`, as many of one cell and GPU at once as there are."""
    shape, traits = rows.shape, rows.traits
    i, j, order = queries.row, queries.gpu, queries.order
    cells = cells_of(shape, (traits.kind, traits.dtype), (i, j), packed, recipes)
    fill_terms(traits, rows.devices, (i, j), _tiles_of(cells, j, recipes), rows.terms)
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
        for k in range(len(block)):
            far[k] = beyond(shape, i[block[k]], reach[0], reach[1])
        correction[: len(block)] = 0.0
        if cell >= 0:
            _add_corrections(rows, packed, recipes, queries, (cell, block), far, correction, trace)
        told_in = dtype if cell == recipes.cell[kind, dtype, 0] else recipes.dtype[cell]
        known = (situation, recipes.lent[kind, dtype], most)
        _fill_codes(rows, i, block, known, (kind, told_in), far, answers)
        if len(trace.cell):
            _trace_physics(rows, recipes, queries, (cell, block), trace)
        if teacher >= 0:
            _put_right(rows, i, block, recipes, (cell, gpu, teacher), factors, correction)
        _fill_times(rows, i, block, reach, factors, far, correction, answers)
        if len(trace.cell):
            _trace_members(rows, queries, block, reach, factors, trace)
        first += len(block)


@compiled
def _add_corrections(  # noqa: PLR0913, PLR0917  (compiled code takes arrays, not tables)
    rows: Rows,
    packed: Packed,
    recipes: Recipes,
    queries: Queries,
    on: tuple[int, Ints],
    far: Floats,
    correction: Floats,
    trace: Trace,
) -> None:
    """Add what a cell's models say of each query of a block, `on`, in log space, fading out of its range."""
    (cell, block), count, share = on, len(on[1]), queries.share
    gpu, ones = queries.gpu[block[0]], queries.twin[block]
    said = np.zeros((MEMBERS if len(trace.cell) else 0, count))
    _add_models(rows, packed, recipes, (queries.row[ones], ones, gpu, cell), correction, said)
    if IS_COLLECTIVE[rows.traits.kind[queries.row[block[0]]]] and share[block].any():
        ones, more, also = queries.other[block], np.zeros(count), np.zeros_like(said)
        _add_models(rows, packed, recipes, (queries.row[ones], ones, gpu, cell), more, also)
        correction[:count] += share[block] * (more - correction[:count])
        said += share[block] * (also - said)
    for k in range(count):
        fading = 1.0
        if far[k] > 0.0:
            row = queries.row[queries.twin[block[k]]]
            fading = np.exp(-FADING * beyond(rows.shape, row, packed.low[cell], packed.high[cell]))
            correction[k] *= fading
        if len(said):
            trace.fading[block[k]] = fading
            trace.correction[:, block[k]] = said[:, k]


@compiled
def _fill_codes(
    rows: Rows,
    i: Ints,
    block: Ints,
    known: tuple[int, bool, float],
    told: tuple[Any, Any],
    far: Floats,
    answers: Answers,
) -> None:
    """What bounds each query of a block, what supports its answer, and the group of its interval.

    `known`: the situation, whether it was lent by another dtype, and the most devices (as a logarithm) taught with:
    how a machine wires more is up to the machine. `told`: operator and dtype of what taught.
    """
    usual, lent, most = known
    for k in range(len(block)):
        q, row = block[k], i[block[k]]
        situation = _known(S_UNSEEN if rows.shape[DEVICES, row] > most else usual, far[k])
        # No backward pass and no burst taught anything.
        situation = _stepped_back(situation, lent, rows.traits.backward[row] > 0.0 or rows.traits.burst[row] > 0.0)
        answers.bound[q], answers.situation[q] = bound_of(rows.terms, q), _supporting(situation, far[k])
        answers.group[q] = _group_of(told[0], told[1], situation)


@compiled
def _put_right(
    rows: Rows,
    i: Ints,
    block: Ints,
    recipes: Recipes,
    on: tuple[int, int, int],
    factors: Floats,
    correction: Floats,
) -> None:
    """Put right the physics of a block that its cell, GPU and teacher (`on`) show to be others on this GPU."""
    (traits, devices, terms), (cell, gpu, teacher) = (rows.traits, rows.devices, rows.terms), on
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
    rows: Rows,
    i: Ints,
    block: Ints,
    reach: tuple[Floats, Floats],
    factors: Floats,
    far: Floats,
    correction: Floats,
    answers: Answers,
) -> None:
    """Seconds of each query of a block, and how much wider than usual its interval is."""
    for k in range(len(block)):
        q = block[k]
        whole = reach[0][EAGER] <= rows.shape[EAGER, i[q]] <= reach[1][EAGER]
        answers.latency_s[q] = corrected_s(rows.terms, q, factors, correction[k], whole)
        answers.stretch[q] = 1.0 + STRETCH * far[k]


@compiled
def _trace_physics(rows: Rows, recipes: Recipes, queries: Queries, on: tuple[int, Ints], trace: Trace) -> None:
    """The cell of a block, its tiles, and its DRAM seconds as they are before a sibling changes them."""
    cell, block = on
    gpu = queries.gpu[block[0]]
    only = recipes.tile[cell, gpu] if cell >= 0 else ANY_TILE
    for q in block:
        trace.cell[q], trace.dram_s[q] = cell, rows.terms[DRAM_S, q]
        trace.tile[q], _ = best_tile(rows.traits, queries.row[q], rows.devices, gpu, only)


@compiled
def _trace_members(
    rows: Rows, queries: Queries, block: Ints, reach: tuple[Floats, Floats], factors: Floats, trace: Trace
) -> None:
    """What the physics of each query of a block says, and each model alone; corrections become those of the time."""
    terms = rows.terms
    for q in block:
        whole = reach[0][EAGER] <= rows.shape[EAGER, queries.row[q]] <= reach[1][EAGER]
        trace.whole[q], trace.physics_s[q] = whole, corrected_s(terms, q, factors, 0.0, whole)
        share = 1.0 if whole else min(scaled_work_s(terms, q, factors) / scaled_s(terms, q, factors), 1.0)
        for k in range(MEMBERS):
            trace.member_s[k, q] = corrected_s(terms, q, factors, trace.correction[k, q] * trace.fading[q], whole)
            trace.correction[k, q] *= share


@compiled
def _add_models(
    rows: Rows, packed: Packed, recipes: Recipes, asked: tuple[Ints, Ints, int, int], total: Floats, said: Floats
) -> None:
    """Add to `total` [m] what the models of a cell say of operator rows, whose terms are in columns `block`.

    `asked`: rows [m], block [m], the GPU and the cell. A sibling's model is asked about the sibling itself. What each
    model says at full weight goes into `said` [MEMBERS, m] unless that is empty.
    """
    i, block, gpu, cell = asked
    count, shown = len(i), -1
    features = np.empty((FEATURES, count), dtype=np.float32)  # in one piece, to be read as vectors
    for k in range(MEMBERS):
        model, teacher = recipes.member[cell, gpu, k], recipes.teacher[cell, gpu, k]
        if model < 0:
            continue
        on = gpu if teacher < 0 else teacher
        if on != shown and on == gpu:
            for n in range(count):
                fill_features(rows.shape, rows.traits, rows.devices, i[n], gpu, rows.terms, block[n], features, n)
        elif on != shown:
            _fill_taught(rows, (i, block, gpu, on), recipes.tile[cell, gpu], features)
        shown, weight = on, recipes.weight[cell, gpu, k]
        if len(said):
            said[k] = -total[:count] / weight
        total[:count] += weight * packed.mean[model]
        trees, edges = (packed.feature, packed.cut, packed.value), (packed.edge, packed.edges[model])
        add_trees(features, trees, edges, (packed.first[model], packed.stop[model]), weight, total[:count])
        points = slice(packed.begin[model], packed.end[model])
        smooth = (packed.column[model], packed.scale[model], packed.point[points], packed.weight[points])
        add_smooth(features, smooth, weight, total[:count])
        if len(said):
            said[k] += total[:count] / weight


@compiled
def _fill_taught(rows: Rows, asked: tuple[Ints, Ints, int, int], only: int, features: Singles) -> None:
    """Fill `features` [FEATURES, m] for operator rows, whose terms are in columns `block`, with a teacher's in mind.

    `asked`: rows [m], block [m], the GPU and its teacher. On the teacher, but for rows of which the L2 there keeps
    another part: what the teacher teaches of these is where its own L2 ends.
    """
    (i, block, gpu, teacher), (shape, traits, devices, terms) = asked, rows
    there = np.empty((TERMS, len(i)))
    fill_terms(traits, devices, (i, np.full(len(i), teacher)), np.full(len(i), only), there)
    for n in range(len(i)):
        bytes_here = terms[DRAM_S, block[n]] * devices.bandwidth[gpu]
        bytes_there = there[DRAM_S, n] * devices.bandwidth[teacher]
        if abs(bytes_here - bytes_there) <= KEPT_ALIKE * max(bytes_here, bytes_there):
            fill_features(shape, traits, devices, i[n], teacher, there, n, features, n)
        else:
            fill_features(shape, traits, devices, i[n], gpu, terms, block[n], features, n)


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
def corrected_s(terms: Floats, q: int, factors: Floats, correction: float, alike: bool) -> float:
    """Seconds by physics under `factors` and a correction in log space; `alike`: launched as what was learned from."""
    if alike:
        return float(max(scaled_s(terms, q, factors) * np.exp(correction), terms[LIMIT, q]))
    # Launched in another way than the measurements: only what concerns the work carries over.
    work = scaled_work_s(terms, q, factors)
    work *= np.exp(correction * min(work / scaled_s(terms, q, factors), 1.0))
    return composed(terms, q, work)
