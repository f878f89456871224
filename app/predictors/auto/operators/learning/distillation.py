"""Distillation: trees of the served size, trained on a larger ensemble's predictions between the measured shapes.

Boosted trees and extremely randomised ones err in different places, so their mean is nearer than either, but takes
several times as long to evaluate. It labels shapes between the measured ones, and boosted trees of the served size are
fitted to measurements and labels together (Bucila, Caruana and Niculescu-Mizil 2006).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from app.coefficients import Coefficients
from app.predictors.trees.boosted import Growth, Trees, boosted
from app.tables.arrays import Floats, Singles

_FITTED = Coefficients("learning")

# Random trees, their least rows per leaf, the part of features tried at each split, and their weight in the ensemble.
RANDOM_TREES, LEAF_ROWS = 60, 2
RANDOM_FEATURES, SHARE = _FITTED.each("random_features", "random_share")
# Logarithms of m, n and k among the features, and how often they are repeated for the random trees: they interpolate
# between two sizes, where other features jump.
SIZES, REPEATS = slice(2, 5), 4
# Largest log ratio by which a row is weighted.
_STEEPEST = _FITTED.number("steepest_distilled")


def distilled(features: Singles, target: Floats, grown: Trees, growth: Growth, blank: Singles) -> Trees:
    """Trees fitted to `target` [n] on features [columns, n] and to the ensemble on `blank` [columns, q]."""
    every = np.concatenate([features, blank], axis=1)
    targets = np.concatenate([target, ensemble(features, target, grown, blank)])
    return boosted(every, targets, np.ones(len(targets)), replace(growth, seed=growth.seed + 1))


def ensemble(features: Singles, target: Floats, grown: Trees, blank: Singles) -> Floats:
    """Weighted mean of the boosted trees `grown` and of random trees, on `blank` [columns, q], float64 [q].

    Both are trained on `target` [n] at features [columns, n].
    """
    from sklearn.ensemble import ExtraTreesRegressor  # noqa: PLC0415  (training alone needs it, and it takes memory)

    counts = np.exp(-np.clip(target, -_STEEPEST, _STEEPEST))
    random = ExtraTreesRegressor(RANDOM_TREES, min_samples_leaf=LEAF_ROWS, max_features=RANDOM_FEATURES, random_state=0)
    random.fit(_sizes_repeated(features), target, sample_weight=counts)
    mean: Floats = (1.0 - SHARE) * grown.sum(blank) + SHARE * random.predict(_sizes_repeated(blank))
    return mean


def _sizes_repeated(features: Singles) -> Singles:
    """Features [columns, n] as rows [n, more columns], those of size repeated."""
    return np.concatenate([features, *[features[SIZES]] * REPEATS]).T
