"""Gaussian process over the residuals of a new GPU, given a model that was trained on other GPUs.

log(measured / expected) on a GPU outside the training = an offset, the same for all rows
  + changes of the six constants of the physics fit, by the sensitivity of a row's time to each
  + a multiple of the trees trained on other GPUs, and a term shared by rows in the same leaves: where the
    behaviour of other GPUs changes, this one's is likely to
  + a smooth rest over sizes and bottlenecks: Matérn 3/2 (Rasmussen and Williams 2006, section 4.2)
  + noise.

The standard deviations are those between GPUs. They were set on validation GPUs (docs/explanation/notebook.md,
"Calibration"); length, amplitude and noise of the smooth rest are fitted to each GPU's own rows.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from app.coefficients import Coefficients
from app.ops import OPS
from app.predictors.auto.operators.models.features import (
    EAGER,
    LAUNCH_BALANCE,
    LIMIT_SHARE,
    MEMORY_BALANCE,
    STACK,
    WAVES,
    dim_rows,
)
from app.predictors.physics.physics_fit import FACTORS, fill_scaled
from app.predictors.priors import IS_COLLECTIVE
from app.predictors.trees.boosted import Trees, leaves_of
from app.predictors.trees.sums import LEAVES
from app.runtime.compiled import compiled
from app.tables.arrays import Bytes, Floats, Ints, Singles

_FITTED = Coefficients("learning")

# Standard deviations in log space between GPUs: of the offset; of the constants of overhead, least time, compute, DRAM,
# L2 and link; of the multiple of the trees; of the term shared by rows in the same leaves.
OFFSET = _FITTED.number("between_gpus_offset")
CONSTANTS = np.array(_FITTED.numbers("between_gpus_constants"))
STRENGTH, LEAF = _FITTED.each("between_gpus_strength", "between_gpus_leaf")
# Columns beside an operator's own sizes that the smooth rest depends on.
BALANCES = np.array([MEMORY_BALANCE, LAUNCH_BALANCE, WAVES])
# A library chooses its kernel by the size of one product, whatever the batch. So rows that differ only in their batch,
# and with it in waves and in work over launch cost, have similar residuals.
_BATCH_STRETCH = _FITTED.number("batch_stretch")
# With few rows of a collective, similarity is by the link's fraction of the time more than by bytes: the wiring of so
# many devices is the same for all messages. Stretch of that fraction, which replaces BALANCES, and of the bytes.
_LINK_STRETCH, _BYTES_STRETCH = _FITTED.each("link_stretch", "bytes_stretch")
# Stretch of the launch mode and of the serving stack: kernels of one say little of another's.
_APART = _FITTED.number("stack_stretch")
# Step in log space of the finite differences of `dependence`.
_STEP = 0.05
# Similarity of two leaves of a tree, by the number of levels at which they differ.
NEAR = np.exp(-np.bitwise_count(np.bitwise_xor.outer(range(LEAVES), range(LEAVES))).astype(np.float64))


class Rest(NamedTuple):
    """Hyperparameters of the smooth rest: length in logarithms of sizes, amplitude; and the noise."""

    length: float
    amplitude: float
    noise: float


# Prior before any row is measured; the noise includes the error of predicting a row by its neighbour.
EXPECTED = Rest(1.5, 0.3, 0.25)
# Noise of an operator for which a library chooses among algorithms: a row then predicts its neighbours worse.
_CHOICE_NOISE = _FITTED.number("choice_noise")


@cache
def _stretches(kind: int) -> dict[str, float]:
    """Return the stretch of each column of an operator, by its code."""
    return {name: dim.stretch for dim in OPS[kind].dims for name in dim.columns}


def expected_noise(kind: int) -> float:
    """Return the prior standard deviation of the noise of an operator, by its code."""
    return _CHOICE_NOISE if chooses(kind) else EXPECTED.noise


def chooses(kind: int) -> bool:
    """Return whether a library chooses among algorithms for an operator, by its code."""
    return OPS[kind].transformed is not None


class Kernels(NamedTuple):
    """Trees trained on other GPUs, and the weight `share` [trees] of each in the leaf term; the weights sum to 1."""

    trees: Trees
    share: Floats

    @classmethod
    def of(cls, trees: Trees) -> Kernels:
        """Return kernels whose weights are proportional to the variance of each tree's leaves."""
        spread = trees.value.var(axis=1, dtype=np.float64)
        return cls(trees, spread / max(float(spread.sum()), np.finfo(np.float64).tiny))


class Places(NamedTuple):
    """Rows of the features that the smooth rest depends on, int [d], and the scale of each, float64 [d]."""

    column: Ints
    stretch: Floats

    @classmethod
    def of(cls, kind: int) -> Places:
        """Return the places of an operator, by its code: dimensions, launch mode, stack and BALANCES."""
        rows = dim_rows(kind)
        stretch = np.array([*(_stretches(kind)[name] for name in rows), *[_APART, _APART], *[1.0] * len(BALANCES)])
        if OPS[kind].batched:
            stretch[[list(rows).index("b"), -2, -1]] = _BATCH_STRETCH
        return cls(np.array([*rows.values(), EAGER, STACK, *BALANCES]), stretch)

    @classmethod
    def of_few(cls, kind: int) -> Places:
        """Return the places for an operator with few rows."""
        places = cls.of(kind)
        if not IS_COLLECTIVE[kind]:
            return places
        sizes = len(places.column) - len(BALANCES)
        stretch = places.stretch[:sizes].copy()
        stretch[list(dim_rows(kind)).index("message_bytes")] = _BYTES_STRETCH
        return cls(np.append(places.column[:sizes], LIMIT_SHARE), np.append(stretch, _LINK_STRETCH))


class View(NamedTuple):
    """Inputs of the Gaussian process.

    place    float64 [n, columns], scaled features of the smooth rest
    leaf     uint8 [n, trees], leaf of each row in each tree
    learned  float64 [n], sum of the trees
    """

    place: Floats
    leaf: Bytes
    learned: Floats

    @classmethod
    def of(cls, features: Singles, places: Places, kernels: Kernels) -> View:
        """Return the inputs of rows with `features` float32 [FEATURES, n]."""
        place, trees = features[places.column].T * places.stretch, kernels.trees
        return cls(place, leaves_of(features, trees), trees.sum(features))


def transfer_covariance(one: View, other: View, kernels: Kernels) -> Floats:
    """Return the covariance of rows [n] with rows [m] by the offset and the trees of other GPUs, float64 [n, m]."""
    common = np.empty((len(one.leaf), len(other.leaf)))
    _fill_common(one.leaf, other.leaf, kernels.share, NEAR, common)
    return OFFSET**2 + STRENGTH**2 * np.outer(one.learned, other.learned) + LEAF**2 * common


def expected(view: View, terms: Floats, factors: Floats, kernels: Kernels) -> Floats:
    """Return the covariance of the errors on a GPU without measurements, including the constants, float64 [n, n]."""
    slope = dependence(terms, factors) * CONSTANTS
    smooth = EXPECTED.amplitude**2 * matern(view.place, view.place, EXPECTED.length)
    covariance: Floats = transfer_covariance(view, view, kernels) + smooth + slope @ slope.T
    return covariance


def matern(one: Floats, other: Floats, length: float) -> Floats:
    """Return the Matérn 3/2 kernel between places [n, columns] and [m, columns], float64 [n, m]."""
    square = (one**2).sum(axis=1)[:, None] + (other**2).sum(axis=1) - 2.0 * one @ other.T
    distance = np.sqrt(np.maximum(square, 0.0)) / length
    kernel: Floats = (1.0 + distance) * np.exp(-distance)
    return kernel


def dependence(terms: Floats, factors: Floats) -> Floats:
    """Return d log(physics) / d log(factor) at `factors` for rows with terms [TERMS, n], float64 [n, FACTORS]."""
    n = terms.shape[1]
    slope, more, less = np.empty((n, FACTORS)), np.empty(n), np.empty(n)
    for k in range(FACTORS):
        step = np.ones(FACTORS)
        step[k] = np.exp(_STEP)
        fill_scaled(terms, factors * step, more)
        fill_scaled(terms, factors / step, less)
        slope[:, k] = np.log(more / less) / (2.0 * _STEP)
    return slope


@compiled
def _fill_common(one: Bytes, other: Bytes, share: Floats, near: Floats, common: Floats) -> None:
    """Fill the leaf similarity of rows [n, m], from 0 to 1."""
    for p in range(len(one)):
        for q in range(len(other)):
            summed = 0.0
            for tree in range(len(share)):
                summed += share[tree] * near[one[p, tree], other[q, tree]]
            common[p, q] = summed
