"""How the times of one operator differ between GPUs, as a Gaussian process over what a model of other GPUs misses.

log(measured / expected) of a GPU that was not learned from = an offset, the same for all rows
  + changes of the six constants of the physics (physics.physics_fit), each seen by a row as far as its
    time depends on it
  + more or less of the trees that were grown on other GPUs, and what rows have in common by the leaves they fall in:
    where others' behaviour changes, this one's is likely to
  + a smooth rest over sizes and bottlenecks: Matérn 3/2 (Rasmussen and Williams 2006, section 4.2)
  + noise.

The spreads say how far GPUs differ. They were set on validation GPUs (docs/explanation/notebook.md, "Calibration");
length, amplitude and noise of the rest are found in each GPU's own rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from app.ops import OPS
from app.predictors.auto.operators.models.boosted_trees import Trees, leaves_of
from app.predictors.auto.operators.models.features import (
    LAUNCH_BALANCE,
    LIMIT_SHARE,
    MEMORY_BALANCE,
    WAVES,
    own_dims,
    size_columns,
)
from app.predictors.auto.operators.models.tree_sums import LEAVES
from app.predictors.auto.operators.physics.physics_fit import FACTORS, fill_scaled
from app.predictors.priors import IS_COLLECTIVE
from app.runtime.compiled import compiled
from app.tables.arrays import Bytes, Floats, Ints, Singles

# Standard deviations in log space between GPUs: of the offset; of the constants of overhead, least time, compute, DRAM,
# L2 and link; of how much of the others' trees applies; of what leaves have in common.
OFFSET = 0.3
CONSTANTS = np.array([0.5, 0.5, 0.5, 0.3, 0.3, 0.5])
STRENGTH, LEAF = 0.5, 0.3
# Columns beside an operator's own sizes that the smooth rest depends on.
BALANCES = np.array([MEMORY_BALANCE, LAUNCH_BALANCE, WAVES])
# A library takes its kernel by the size of one product; a batch is as many of them. So rows that differ in their batch,
# and with it in their waves and in their work over its launch, miss the physics alike.
_BATCH_STRETCH = 0.1
# Few rows of a collective are near one another where alike parts of their times are the link's, more than where their
# bytes are: how so many devices are wired is the same for all messages that wait for it. Stretch of that part, which
# takes the place of BALANCES, and of the bytes.
_LINK_STRETCH, _BYTES_STRETCH = 1.5, 0.6
# Step of a constant, in log space, by which a row's dependence on it is found.
_STEP = 0.05
# What two leaves of a tree have in common, by the answers to its questions in which they differ.
_DIFFERING = np.array([[(one ^ other).bit_count() for other in range(LEAVES)] for one in range(LEAVES)])
NEAR = np.exp(-_DIFFERING.astype(np.float64))


class Rest(NamedTuple):
    """The smooth rest: its length in the logarithms of sizes, its amplitude; and the noise."""

    length: float
    amplitude: float
    noise: float


# What is expected before a row is measured: noise stands also for what one row says wrongly of those beside it.
EXPECTED = Rest(1.5, 0.3, 0.25)
# The noise of an operator for which a library chooses among algorithms: one row then says less of those beside it.
_CHOICE_NOISE = 0.6


def expected_noise(kind: int) -> float:
    """Standard deviation of what one row of an operator, by its code, says wrongly of those beside it."""
    return _CHOICE_NOISE if chooses(kind) else EXPECTED.noise


def chooses(kind: int) -> bool:
    """Whether a library chooses among algorithms for an operator, by its code."""
    return OPS[kind].transformed is not None


class Kernels(NamedTuple):
    """Trees grown on other GPUs, and how much each says of what rows have in common: `share` [trees] adds up to 1."""

    trees: Trees
    share: Floats

    @classmethod
    def of(cls, trees: Trees) -> Kernels:
        """Trees count by how far their leaves are apart."""
        spread = trees.value.var(axis=1, dtype=np.float64)
        return cls(trees, spread / max(float(spread.sum()), np.finfo(np.float64).tiny))


class Places(NamedTuple):
    """Rows of the features that the smooth rest depends on, int [d], and how far each is stretched, float64 [d]."""

    column: Ints
    stretch: Floats

    @classmethod
    def of(cls, kind: int, *, product: bool) -> Places:
        """Of an operator's code; `product`: it is one of matrices."""
        sizes = size_columns(kind, product=product)
        stretch = np.ones(len(sizes) + len(BALANCES))
        stretches = {name: dim.stretch for dim in OPS[kind].dims for name in dim.columns}
        for k, name in enumerate(own_dims(kind)[: len(sizes) - 1]):
            stretch[k] = stretches[name]
        if OPS[kind].batched:
            stretch[[own_dims(kind).index("b"), -2, -1]] = _BATCH_STRETCH
        return cls(np.concatenate([sizes, BALANCES]), stretch)

    @classmethod
    def of_few(cls, kind: int, *, product: bool) -> Places:
        """The same where rows are few."""
        places = cls.of(kind, product=product)
        if not IS_COLLECTIVE[kind]:
            return places
        sizes = len(places.column) - len(BALANCES)
        stretch = places.stretch[:sizes].copy()
        stretch[own_dims(kind).index("message_bytes")] = _BYTES_STRETCH
        return cls(np.append(places.column[:sizes], LIMIT_SHARE), np.append(stretch, _LINK_STRETCH))


class View(NamedTuple):
    """Rows as the process sees them.

    place    float64 [n, columns], where they are for the smooth rest
    leaf     uint8 [n, trees]
    learned  float64 [n], what the trees say of them
    """

    place: Floats
    leaf: Bytes
    learned: Floats

    @classmethod
    def of(cls, features: Singles, places: Places, kernels: Kernels) -> View:
        """Rows with these features float32 [FEATURES, n]."""
        place, trees = features[places.column].T * places.stretch, kernels.trees
        return cls(place, leaves_of(features, trees), trees.sum(features))


def taught(one: View, other: View, kernels: Kernels) -> Floats:
    """Covariance of rows [n] with rows [m] by the offset and by what others taught, float64 [n, m]."""
    common = np.empty((len(one.leaf), len(other.leaf)))
    _fill_common(one.leaf, other.leaf, kernels.share, NEAR, common)
    return OFFSET**2 + STRENGTH**2 * np.outer(one.learned, other.learned) + LEAF**2 * common


def expected(view: View, terms: Floats, factors: Floats, kernels: Kernels) -> Floats:
    """Covariance of rows' errors on a GPU of which none was measured, constants among them, float64 [n, n]."""
    slope = dependence(terms, factors) * CONSTANTS
    smooth = EXPECTED.amplitude**2 * matern(view.place, view.place, EXPECTED.length)
    found: Floats = taught(view, view, kernels) + smooth + slope @ slope.T
    return found


def matern(one: Floats, other: Floats, length: float) -> Floats:
    """The kernel between places [n, columns] and [m, columns], float64 [n, m]."""
    square = (one**2).sum(axis=1)[:, None] + (other**2).sum(axis=1) - 2.0 * one @ other.T
    distance = np.sqrt(np.maximum(square, 0.0)) / length
    kernel: Floats = (1.0 + distance) * np.exp(-distance)
    return kernel


def dependence(terms: Floats, factors: Floats) -> Floats:
    """How log(physics) of rows with terms [TERMS, n] follows each log(constant), at `factors`, float64 [n, FACTORS]."""
    n = terms.shape[1]
    found, more, less = np.empty((n, FACTORS)), np.empty(n), np.empty(n)
    for k in range(FACTORS):
        step = np.ones(FACTORS)
        step[k] = np.exp(_STEP)
        fill_scaled(terms, factors * step, more)
        fill_scaled(terms, factors / step, less)
        found[:, k] = np.log(more / less) / (2.0 * _STEP)
    return found


@compiled
def _fill_common(one: Bytes, other: Bytes, share: Floats, near: Floats, common: Floats) -> None:
    """What rows have in common by the trees' leaves, from 0 to 1."""
    for p in range(len(one)):
        for q in range(len(other)):
            summed = 0.0
            for tree in range(len(share)):
                summed += share[tree] * near[one[p, tree], other[q, tree]]
            common[p, q] = summed
