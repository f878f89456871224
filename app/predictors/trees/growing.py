"""The compiled part of boosting: splits by sums over bins of the features, one tree after another.

A split is the same in every leaf of a level (app.predictors.trees.boosted), so that its score is a sum over leaves.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from app.predictors.trees.sums import DEPTH, LEAVES
from app.runtime.compiled import compiled
from app.tables.arrays import Floats, Singles

Bins = NDArray[np.uint8]

BINS = 64
# Leaves are whole numbers of steps up to this, or to one that divides it, as they are stored: later trees allow for it.
STEPS = 126
# Regularisation of leaves: this many rows of residual zero are added to each.
SHRINKAGE = 2.0
# Bound of the residual, in log space, in the gradient of a relative error.
STEEPEST = 1.0


@compiled
def grow(
    samples: tuple[Bins, Singles, Singles],
    same: NDArray[np.int64],
    settings: tuple[float, float, int, bool],
    by_tree: tuple[Floats, Floats],
    draw: tuple[int, int],
    trees: tuple[NDArray[np.int16], Bins, Singles],
) -> None:
    """Fill `trees`, feature, bin above which a row goes right, and value, by the bins, target and weight of rows.

    `same`: the column of `bins` that each feature has, which features with equal bins share; a column is drawn with any
    of its features. `by_tree`: Huber thresholds and learning rates, [trees]. `draw`: the column of the first level or
    -1, and a seed.
    """
    bins, target, weight = samples
    row_share, feature_share, steps, relative = settings
    clears, rates = by_tree
    first, seed = draw
    feature, bin_index, value = trees
    n, columns = bins.shape
    np.random.seed(seed)
    rest, leaf, pull = target.copy(), np.zeros(n, dtype=np.uint8), np.empty(n, dtype=np.float32)
    rows, chosen = np.empty(n, dtype=np.int64), np.empty(len(same), dtype=np.int64)
    sums = np.empty((LEAVES // 2, columns, BINS, 2), dtype=np.float32)
    used, by_leaf = _used(bins), np.empty(n, dtype=np.int64)
    for tree in range(len(feature)):
        clear = clears[tree]
        for row in range(n):
            off = abs(rest[row])
            pull[row] = weight[row] * (clear / off if off > clear else 1.0)
            if relative:  # the slope of a ratio's error is the ratio itself
                pull[row] *= np.exp(min(max(-rest[row], -STEEPEST), STEEPEST))
        picked = rows[: _pick(n, row_share, rows)]
        drawn = chosen[: _pick(len(same), feature_share, chosen)]
        candidates = np.unique(same[drawn])
        near, widths = _gathered(bins, picked, candidates), used[candidates]
        leaf[:] = 0
        for level in range(DEPTH):
            half = (1 << level) >> 1
            # Who went left at the last level is left out: the left sums are the parent's less the right ones.
            right = by_leaf[: _group(leaf[picked], half, by_leaf)]
            _sum_up(sums[: 1 << level], widths, half, (near, right, leaf[picked]), (rest[picked], pull[picked]))
            column, best_bin = _best_split(sums[: 1 << level, : len(candidates)], widths)
            best_column = candidates[column]
            if level == 0 and first >= 0:
                best_column, best_bin = first, 0
            feature[tree, level], bin_index[tree, level] = best_column, best_bin
            bit = np.uint8(1 << level)
            for row in range(n):
                if bins[row, best_column] > best_bin:
                    leaf[row] |= bit
        _fill_leaves(value[tree], picked, leaf, rest, pull)
        _scale(value[tree], rates[tree], steps)
        for row in range(n):
            rest[row] -= value[tree, leaf[row]]


@compiled
def _pick(n: int, share: float, picked: NDArray[np.int64]) -> int:
    """Write each of 0 ... n - 1 to `picked` with probability `share`, at least one. Return how many."""
    count = 0
    for k in range(n):
        if np.random.random() < share:
            picked[count] = k
            count += 1
    if count == 0:
        picked[0] = np.random.randint(n)
        count = 1
    return count


@compiled
def _used(bins: Bins) -> NDArray[np.int64]:
    """Return the number of bins up to the last one with a row, int64 [columns], for bins [n, columns]."""
    used = np.zeros(bins.shape[1], dtype=np.int64)
    for row in range(len(bins)):
        for column in range(len(used)):
            used[column] = max(used[column], bins[row, column] + 1)
    return used


@compiled
def _gathered(bins: Bins, picked: NDArray[np.int64], candidates: NDArray[np.int64]) -> Bins:
    """Return the bins of the picked rows in the candidate columns, [picked, candidates], close to one another."""
    near = np.empty((len(picked), len(candidates)), dtype=np.uint8)
    for k in range(len(picked)):
        for column in range(len(candidates)):
            near[k, column] = bins[picked[k], candidates[column]]
    return near


@compiled
def _group(leaf: Bins, least: int, by_leaf: NDArray[np.int64]) -> int:
    """Write the positions of rows in leaves from `least` on, leaf by leaf, and return how many they are.

    The sums of a leaf then stay in the processor's cache. Rows of a leaf keep their order, and so do roundings.
    """
    ends = np.zeros(LEAVES, dtype=np.int64)
    for here in leaf:
        if here >= least:
            ends[here] += 1
    ends = np.cumsum(ends)
    count: int = ends[-1]
    for k in range(len(leaf) - 1, -1, -1):
        here = leaf[k]
        if here >= least:
            ends[here] -= 1
            by_leaf[ends[here]] = k
    return count


@compiled
def _sum_up(
    sums: Singles,
    used: NDArray[np.int64],
    half: int,
    rows: tuple[Bins, NDArray[np.int64], Bins],
    figures: tuple[Singles, Singles],
) -> None:
    """Fill `sums` [leaves, columns, BINS, 2]: from `half` on by `rows`, and those below as what remains of them.

    `rows`: bins [picked, columns], the positions of rows to add, leaf by leaf, and leaves; `figures`: residuals and
    weights.
    """
    bins, right, leaf = rows
    rest, pull = figures
    columns = len(used)
    for here in range(half, len(sums)):
        for column in range(columns):
            for at in range(used[column]):
                sums[here, column, at, 0] = 0.0
                sums[here, column, at, 1] = 0.0
    for k in right:
        here, gradient, mass = leaf[k], rest[k] * pull[k], pull[k]
        for column in range(columns):
            at = bins[k, column]
            sums[here, column, at, 0] += gradient
            sums[here, column, at, 1] += mass
    for here in range(half):
        for column in range(columns):
            for at in range(used[column]):
                sums[here, column, at, 0] -= sums[half + here, column, at, 0]
                sums[here, column, at, 1] -= sums[half + here, column, at, 1]


@compiled
def _best_split(sums: Singles, used: NDArray[np.int64]) -> tuple[int, int]:
    """Return the column and bin of the best split, which is the same in every leaf.

    `sums` [leaves, columns, BINS, 2] are gradients and masses; of a column only the first `used` bins are read. A split
    above them would leave all rows on the left, as that above the last of them does.
    """
    best, best_column, best_bin = -1.0, 0, 0
    score, left, left_mass = np.empty(BINS), np.empty(BINS), np.empty(BINS)
    for column in range(len(used)):
        splits = min(used[column], BINS - 1)
        score[:splits] = 0.0
        for leaf in range(len(sums)):
            gradient, mass = _running(sums[leaf, column, : used[column]], left, left_mass)
            for k in range(splits):  # apart from the running sums, which wait for one another: these do not
                right, right_mass = gradient - left[k], mass - left_mass[k]
                score[k] += left[k] * left[k] / (left_mass[k] + SHRINKAGE) + right * right / (right_mass + SHRINKAGE)
        for k in range(splits):
            if score[k] > best:
                best, best_column, best_bin = score[k], column, k
    return best_column, best_bin


@compiled
def _running(cells: Singles, left: Floats, left_mass: Floats) -> tuple[np.float32, np.float32]:
    """Fill the running sums of gradients and masses over the bins of `cells` [bins, 2], and return their totals."""
    gradient = mass = np.float32(0.0)
    up_to = up_to_mass = 0.0
    for k in range(len(cells)):
        gradient += cells[k, 0]
        mass += cells[k, 1]
        up_to += cells[k, 0]
        up_to_mass += cells[k, 1]
        left[k], left_mass[k] = up_to, up_to_mass
    return gradient, mass


@compiled
def _fill_leaves(value: Singles, picked: NDArray[np.int64], leaf: Bins, rest: Singles, weight: Singles) -> None:
    """Fill `value` [LEAVES] with the regularised weighted mean of the residuals `rest` [n] of each leaf."""
    gradient, mass = np.zeros(LEAVES), np.zeros(LEAVES)
    for row in picked:
        gradient[leaf[row]] += rest[row] * weight[row]
        mass[leaf[row]] += weight[row]
    for k in range(LEAVES):
        value[k] = gradient[k] / (mass[k] + SHRINKAGE)


@compiled
def _scale(value: Singles, rate: float, steps: int) -> None:
    """Multiply leaves by `rate` and round them to `steps` parts of the largest."""
    unit = np.float32(rate * np.abs(value).max() / steps)
    for k in range(len(value)):
        value[k] = np.rint(value[k] * rate / unit) * unit if unit > 0.0 else 0.0
