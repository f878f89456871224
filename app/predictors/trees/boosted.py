"""Gradient boosting with oblivious trees: all nodes of one level compare the same feature with the same threshold.

A tree of depth D is D comparisons (feature, threshold) and 2^D leaves, so that a block of rows goes through a tree in D
vector comparisons and one gather (trees.sums), where an ordinary tree chases pointers.
Training is exact greedy boosting on binned features (Friedman 2001; oblivious trees as in CatBoost, Prokhorenkova et
al. 2018): squared error, absolute beyond `Growth.clear` (Huber 1964), each tree on a random part of rows and features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from app.predictors.schema import check_below
from app.predictors.trees.growing import BINS, STEPS, Bins, grow
from app.predictors.trees.sums import BLOCK, DEPTH, LEAVES, Thresholds, TreeArrays, add_trees, halves_of, questions_of
from app.tables.arrays import Floats, Halves, Singles

# Places between two values where thresholds of different trees lie, so that their sum interpolates between the values
# (docs/explanation/notebook.md).
PLACES = 3


@dataclass(frozen=True, slots=True)
class Growth:
    """Hyperparameters of boosting: number of trees, learning rate, fraction of rows and of features sampled per tree.

    `clear`: threshold of the Huber loss, in units of the target; the gradient is constant beyond it.
    `settles`: fraction of `clear` left at the last tree; it falls linearly over the second half. So the trees fit means
    first, which takes few steps, and end at medians.
    `first`: the feature of every tree's first level, compared with its smallest threshold; -1 for the best split.
    `relative`: whether the target is a logarithm whose loss is the relative error |predicted / true - 1|: twice the
    time is then worse than half the time.
    `places`: number of places between two values where thresholds lie. A feature of a model has at most 255 thresholds
    (trees.sums), and one boosting has up to BINS - 1 times this number.
    `rises`: the rate rises linearly over the trees, from 1 - rises to 1 + rises times `rate`.
    `steps`: a leaf is a whole number of this many parts of its tree's largest; a divisor of STEPS. Few take less space.
    """

    trees: int
    rate: float = 0.1
    rows: float = 0.8
    features: float = 0.4
    seed: int = 0
    clear: float = np.inf
    settles: float = 1.0
    first: int = -1
    relative: bool = False
    places: int = PLACES
    rises: float = 0.0
    steps: int = STEPS

    @property
    def rates(self) -> Floats:
        """Return the learning rate of every tree, float64 [trees]."""
        rates: Floats = self.rate * (1.0 + self.rises * np.linspace(-1.0, 1.0, self.trees))
        return rates

    @property
    def clears(self) -> Floats:
        """Return the Huber threshold of every tree, float64 [trees]."""
        fallen = np.maximum(2.0 * np.arange(self.trees) / self.trees - 1.0, 0.0)
        clears: Floats = self.clear * self.settles**fallen
        return clears


class Gaps(NamedTuple):
    """Gaps between neighbouring values of a feature: the values below and above, float64 [gaps] each."""

    low: Floats
    high: Floats


class Trees(NamedTuple):
    """A sum of oblivious trees.

    feature    int16 [trees, DEPTH], row of the features that a level compares
    threshold  float32 [trees, DEPTH]; a row goes right if the feature exceeds it
    value      [trees, LEAVES], float32 in training, float16 in sums; level d sets bit d of the leaf
    """

    feature: NDArray[np.int16]
    threshold: Singles
    value: Singles | Halves

    def sum(self, features: Singles) -> Floats:
        """Return the sum of the trees, float64 [n], for features float32 [columns, n]."""
        total, span = np.zeros(features.shape[1]), (0, len(self.feature))
        questions = questions_of(self.feature, self.threshold, len(features))
        half = self.value.astype(np.float16).view(np.uint16)
        trees = TreeArrays(self.feature, questions.level_threshold, half)
        thresholds = Thresholds(questions.threshold, questions.begin)
        for first in range(0, len(total), BLOCK):
            block = np.ascontiguousarray(features[:, first : first + BLOCK])
            add_trees(block, trees, thresholds, span, 1.0, total[first : first + BLOCK])
        return total

    def and_then(self, other: Trees) -> Trees:
        """Return these trees followed by `other`, which was trained on their residuals."""
        feature = np.concatenate([self.feature, other.feature])
        threshold = np.concatenate([self.threshold, other.threshold])
        return Trees(feature, threshold, np.concatenate([self.value, other.value]).astype(np.float32))

    def state(self) -> dict[str, Any]:
        """Return the fields as arrays: thresholds as in Questions, leaves in steps of their tree, so 0 remains 0."""
        unit = np.abs(self.value).max(axis=1, keepdims=True).astype(np.float32) / STEPS
        rounded = np.rint(np.divide(self.value, unit, out=np.zeros(self.value.shape, np.float32), where=unit > 0.0))
        questions = questions_of(self.feature, self.threshold, int(self.feature.max(initial=-1)) + 1)
        return {
            "feature": self.feature,
            **questions._asdict(),
            "value": np.clip(rounded, -STEPS, STEPS).astype(np.int8),
            "unit": unit[:, 0],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the trees of a `state`. Raises ValueError if it refers to a feature or threshold that it lacks."""
        feature, threshold, value = state["feature"], state["threshold"], state["value"]
        if "unit" in state:  # artefacts before 0.3 have leaves in half precision
            value = halves_of(value, np.asarray(state["unit"], dtype=np.float32))
        if "begin" in state:  # and a threshold of each level
            check_below("features of trees", feature, len(state["begin"]))
            place = state["begin"][feature] + state["level_threshold"]
            check_below("places of thresholds", place, len(threshold))
            threshold = threshold[place]
        return cls(feature, threshold, value)


def leaves_of(features: Singles, trees: Trees) -> Bins:
    """Return the leaf of every row in every tree, uint8 [n, trees], for features float32 [columns, n]."""
    leaf = np.zeros((features.shape[1], len(trees.feature)), dtype=np.uint8)
    for level in range(DEPTH):
        right = trees.threshold[:, level] < features[trees.feature[:, level]].T
        leaf |= right.astype(np.uint8) << np.uint8(level)
    return leaf


NO_TREES = Trees(np.empty((0, DEPTH), np.int16), np.empty((0, DEPTH), np.float32), np.empty((0, LEAVES), np.float32))


def boosted(features: Singles, target: Floats, weight: Floats, growth: Growth) -> Trees:
    """Return trees whose sum fits `target` [n] given `features` float32 [columns, n] and sample weights [n]."""
    gaps = [_gaps(column) for column in features]
    bins = [np.searchsorted(gap.low, column).astype(np.uint8) for gap, column in zip(gaps, features, strict=True)]
    kept, same = _distinct(bins)
    feature = np.zeros((growth.trees, DEPTH), dtype=np.int16)
    bin_index = np.zeros((growth.trees, DEPTH), dtype=np.uint8)
    value = np.zeros((growth.trees, LEAVES), dtype=np.float32)
    settings = (growth.rows, growth.features, growth.steps, growth.relative)
    draw = (int(same[growth.first]) if growth.first >= 0 else -1, growth.seed)
    relative = (weight / weight.mean()).astype(np.float32)
    samples = (np.stack([bins[column] for column in kept], axis=1), target.astype(np.float32), relative)
    grow(samples, same, settings, (growth.clears, growth.rates), draw, (feature, bin_index, value))
    feature = kept[feature]
    return Trees(feature, _placed(gaps, feature, bin_index, growth), value)


def _distinct(bins: Sequence[Bins]) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """Return the first of all columns with equal bins, int16 [kept], and which of these equals each column.

    Splits of equal columns are the same, and a constant one has none, so that summing over more takes time for nothing.
    """
    first: dict[bytes, int] = {}
    positions = [first.setdefault(column.tobytes(), k) for k, column in enumerate(bins)]
    kept = sorted(first.values())
    return np.array(kept, dtype=np.int16), np.searchsorted(kept, positions).astype(np.int64)


def _placed(gaps: Sequence[Gaps], feature: NDArray[np.int16], bin_index: Bins, growth: Growth) -> Singles:
    """Return a threshold in the gap above each bin, [trees, DEPTH]; infinite where a feature has no such gap."""
    ends = np.full((2, len(gaps), BINS), np.inf)
    for row, gap in enumerate(gaps):
        ends[:, row, : len(gap.low)] = gap
    low, high = ends[:, feature, bin_index]
    place = (np.random.default_rng(growth.seed).integers(growth.places, size=low.shape) + 0.5) / growth.places
    threshold: Singles = ((1.0 - place) * low + place * high).astype(np.float32)
    return threshold


def _gaps(column: Singles) -> Gaps:
    """Return at most BINS - 1 gaps between values: all if they are few, else those at quantiles."""
    values = np.unique(column).astype(np.float64)
    below = np.arange(len(values) - 1)
    if len(values) > BINS:
        at = np.quantile(column, np.arange(1, BINS) / BINS)
        below = np.unique(np.clip(np.searchsorted(values, at, side="right") - 1, 0, len(values) - 2))
    return Gaps(values[below], values[below + 1])
