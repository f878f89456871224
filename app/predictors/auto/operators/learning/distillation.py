"""A GPU's own trees learn once more, also where nothing was measured: from a stronger model than may be served.

Trees of boosting and random ones err in other places, so that their mean is nearer than either, but takes some times
as long to ask. So the mean answers the shapes between those measured, and trees of the served size follow both
(Bucila, Caruana and Niculescu-Mizil 2006).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from app.predictors.auto.operators.models.boosted_trees import Growth, Trees, boosted
from app.tables.arrays import Floats, Singles

# Random trees, the least rows of their leaves, the part of features that a question is chosen among, and their part in
# the teacher's answer.
RANDOM_TREES, LEAF_ROWS, RANDOM_FEATURES, SHARE = 60, 2, 0.6, 0.4
# Logarithms of m, n and k among the features, and how much more often than others random trees ask these: what is
# between two sizes is told by them, while other features jump there.
SIZES, REPEATS = slice(2, 5), 4
# How far off in log space a row still counts by its ratio.
_STEEPEST = 0.7


def taught_again(features: Singles, target: Floats, grown: Trees, growth: Growth, blank: Singles) -> Trees:
    """Trees in place of `grown` that follow `target` [n] on features [columns, n], and the teacher on `blank`."""
    every = np.concatenate([features, blank], axis=1)
    targets = np.concatenate([target, teacher(features, target, grown, blank)])
    return boosted(every, targets, np.ones(len(targets)), replace(growth, seed=growth.seed + 1))


def teacher(features: Singles, target: Floats, grown: Trees, blank: Singles) -> Floats:
    """Mean [q] on `blank` [columns, q] of trees `grown` on `target` [n] of features [columns, n] and of random ones."""
    from sklearn.ensemble import ExtraTreesRegressor  # noqa: PLC0415  (training alone needs it, and it takes memory)

    counts = np.exp(-np.clip(target, -_STEEPEST, _STEEPEST))
    random = ExtraTreesRegressor(RANDOM_TREES, min_samples_leaf=LEAF_ROWS, max_features=RANDOM_FEATURES, random_state=0)
    random.fit(_sizes_repeated(features), target, sample_weight=counts)
    told: Floats = (1.0 - SHARE) * grown.sum(blank) + SHARE * random.predict(_sizes_repeated(blank))
    return told


def _sizes_repeated(features: Singles) -> Singles:
    """Features [columns, n] as rows, with those that vary by size several times."""
    return np.concatenate([features, *[features[SIZES]] * REPEATS]).T
