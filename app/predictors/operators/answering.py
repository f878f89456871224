"""Answers of learned operators, many at once: physics under fitted constants, and what models say it misses."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from app.predictors.compiled import compiled
from app.predictors.intervals import (
    S_CALIBRATED,
    S_SEEN,
    S_SEEN_OUTSIDE,
    S_SIBLING,
    S_UNSEEN,
    S_UNSEEN_OUTSIDE,
    S_UNTRAINED,
    operator_codes,
)
from app.predictors.operators.boosting import BLOCK, add_trees
from app.predictors.operators.cells import MOST_KIN
from app.predictors.operators.constants import FACTORS, scaled_s, scaled_work_s
from app.predictors.operators.features import EAGER, FEATURES, fill_features
from app.predictors.operators.packed import Packed, Recipes
from app.predictors.operators.smooth import add_smooth
from app.predictors.operators.time import ANY_TILE, LIMIT, Devices, Traits, bound_of, composed, fill_terms

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Ints = NDArray[np.intp]

MEMBERS = MOST_KIN + 1
# How fast what was learned fades out of the range it was learned in, per factor of e.
FADING = 0.1
# An answer further out of the range learned from errs more: its interval grows by this part per factor of e.
STRETCH = 0.25

_group_of = compiled(operator_codes)


@compiled
def fill_answers(  # noqa: PLR0913, PLR0917  (compiled code takes arrays, not tables)
    shape: Singles,
    traits: Traits,
    devices: Devices,
    asked: tuple[Ints, Ints, Ints],
    terms: Floats,
    packed: Packed,
    recipes: Recipes,
    times: tuple[Floats, Floats],
    codes: tuple[Ints, Ints, Ints],
) -> None:
    """Queries in `order`, as many of one cell and GPU at once as there are; their physics go into `terms`."""
    i, j, order = asked
    bound, situation, group = codes
    fill_terms(traits, devices, (i, j), _tiles_of(traits, i, j, recipes), terms)
    total, neutral, first = np.empty(BLOCK), np.ones(FACTORS), 0
    while first < len(order):
        row, gpu = i[order[first]], j[order[first]]
        cell, count = recipes.cell[traits.kind[row], traits.dtype[row]], 0
        while first + count < len(order) and count < BLOCK:
            q = order[first + count]
            if j[q] != gpu or traits.kind[i[q]] != traits.kind[row] or traits.dtype[i[q]] != traits.dtype[row]:
                break
            count += 1
        block = order[first : first + count]
        features = np.empty((FEATURES, count), dtype=np.float32)  # in one piece, to be read as vectors
        total[:count] = 0.0
        if cell >= 0:
            for k in range(count):
                fill_features(shape, traits, devices.figures, i[block[k]], gpu, terms, block[k], features, k)
            for k in range(MEMBERS):
                model = recipes.member[cell, gpu, k]
                if model >= 0:
                    weight = recipes.weight[cell, gpu, k]
                    total[:count] += weight * packed.mean[model]
                    trees = (packed.feature, packed.threshold, packed.value)
                    span = (packed.first[model], packed.stop[model])
                    add_trees(features, trees, span, weight, total[:count])
                    points = slice(packed.begin[model], packed.end[model])
                    smooth = (packed.column[model], packed.scale[model], packed.point[points], packed.weight[points])
                    add_smooth(features, smooth, weight, total[:count])
        factors = recipes.factors[cell, gpu] if cell >= 0 else neutral
        lent = recipes.lent[traits.kind[row], traits.dtype[row]]
        for k in range(count):
            q = block[k]
            bound[q], situation[q], far, alike = bound_of(terms, q), S_UNTRAINED, 0.0, True
            if cell >= 0:
                situation[q] = recipes.situation[cell, gpu]
                far = beyond(shape, i[q], packed.low[cell], packed.high[cell])
                alike = packed.low[cell, EAGER] <= shape[EAGER, i[q]] <= packed.high[cell, EAGER]
                if far > 0.0:
                    if situation[q] == S_SEEN or situation[q] == S_CALIBRATED:
                        situation[q] = S_SEEN_OUTSIDE
                    elif situation[q] == S_UNSEEN:
                        situation[q] = S_UNSEEN_OUTSIDE
            times[1][q] = 1.0 + STRETCH * far
            else_run = traits.backward[i[q]] > 0.0 or traits.burst[i[q]] > 0.0
            situation[q] = _stepped_back(situation[q], lent, else_run)
            group[q] = _group_of(traits.kind[i[q]], traits.dtype[i[q]], situation[q])
            situation[q] = _supporting(situation[q], far)
            times[0][q] = corrected_s(terms, q, factors, total[k] * np.exp(-FADING * far), alike)
        first += count


@compiled
def _tiles_of(traits: Traits, i: Ints, j: Ints, recipes: Recipes) -> Ints:
    """The only tile that kernels for operator row `i[q]` have on GPU row `j[q]`, or ANY_TILE, [n]."""
    only = np.full(len(i), ANY_TILE)
    for q in range(len(i)):
        cell = recipes.cell[traits.kind[i[q]], traits.dtype[i[q]]]
        if cell >= 0:
            only[q] = recipes.tile[cell, j[q]]
    return only


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
    return float(far) if far > 1e-3 else 0.0


@compiled
def corrected_s(terms: Floats, q: int, factors: Floats, correction: float, alike: bool) -> float:
    """Seconds by physics under `factors` and a correction in log space; `alike`: launched as what was learned from."""
    if alike:
        return float(max(scaled_s(terms, q, factors) * np.exp(correction), terms[LIMIT, q]))
    # Launched in another way than the measurements: only what concerns the work carries over.
    work = scaled_work_s(terms, q, factors)
    work *= np.exp(correction * min(work / scaled_s(terms, q, factors), 1.0))
    return composed(terms, q, work)
