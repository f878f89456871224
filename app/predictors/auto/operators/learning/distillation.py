"""Distillation: trees of the served size, trained on a larger ensemble's predictions between the measured shapes.

Boosted trees and extremely randomised ones err in different places, so their mean is nearer than either, but takes
several times as long to evaluate. It labels shapes between the measured ones, and boosted trees of the served size are
fitted to measurements and labels together (Bucila, Caruana and Niculescu-Mizil 2006). `unmeasured` draws such shapes:
of matrix products where a GPU has many rows, which are a grid of m; of attention where it has few, as trees of the
served size have room for more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from app.coefficients import Coefficients
from app.ops import OPS
from app.predictors.priors import IS_LINEAR
from app.predictors.trees.boosted import Growth, Trees, boosted
from app.tables.arrays import Floats, Ints, Singles
from app.tables.measurements import Measurements, stacked
from app.tables.ops import DTYPE_CODE

# Rows of a GPU from which the ensemble is better: with 6,000 its random trees erred a third more than the boosted ones.
LEAST_ROWS = 15_000
# Formats whose rows scatter evenly. In FP8 some of a B200's take twice as long as their neighbours, which random trees
# spread to shapes between (error with configurations held out: 7.5 % without, 7.9 % with distillation).
STEADY = ("fp16", "bf16")
# Most unmeasured rows per measured one: each costs as much training time.
MOST_UNMEASURED = 1.0
# Attention: fields of a layer, most rows of a GPU with distillation, and unmeasured rows per measured one. With more
# rows trees have no room for more (L40S, H100, B200: no better or worse); chosen at 1,700 trees of 4 rows each.
LAYER = ("heads", "kv_heads", "head_dim", "window")
MOST_ROWS, OF_LAYERS = 6_800, 1.0
# Layers drawn per layer kept: most are measured, or have heads that no KV heads divide.
_TRIES = 8


def unmeasured(rows: Measurements) -> Measurements:
    """Unmeasured rows per GPU, with times of one; empty for operators that are not distilled.

    Matrix products in STEADY formats: every measured m on pairs of n and k that were measured separately, a random part
    where there are many. Attention: layers that take each dimension from one of two measured layers, the other fields
    from a random row.
    """
    parts = [rows.take(np.empty(0, dtype=np.intp))]
    if len(rows):
        attends = OPS[int(rows.ops.kind[0])].fields.keys() >= {*LAYER}
        steady = IS_LINEAR[rows.ops.kind[0]] and rows.ops.dtype[0] in [DTYPE_CODE[name] for name in STEADY]
        for mine in (np.flatnonzero(rows.gpu == gpu) for gpu in np.unique(rows.gpu)):
            if steady and len(mine) >= LEAST_ROWS:
                parts.append(_of_gpu(rows.take(mine)))
            if attends and len(mine) <= MOST_ROWS:
                parts.append(_layers_of_gpu(rows.take(mine)))
    return stacked(parts)


def _layers_of_gpu(rows: Measurements) -> Measurements:
    """Unmeasured attention layers between those of one GPU's rows."""
    random, n = np.random.default_rng(0), int(OF_LAYERS * len(rows))
    layers = np.array([rows.ops.column(name) for name in LAYER])
    layers[1] = np.where(np.isnan(layers[1]), layers[0], layers[1])  # absent: as many as heads
    known = np.unique(layers, axis=1)
    one, other = random.integers(known.shape[1], size=(2, _TRIES * n))
    mixed = np.where(random.random((len(LAYER), _TRIES * n)) < 0.5, known[:, one], known[:, other])
    every = np.unique(np.concatenate([known, mixed], axis=1), axis=1, return_inverse=True)[1].ravel()
    new = ~np.isin(every[known.shape[1] :], every[: known.shape[1]]) & (mixed[0] % mixed[1] == 0.0)
    mixed = mixed[:, new][:, :n]
    like = random.choice(np.arange(len(rows)), size=mixed.shape[1])
    return _like(rows, like, dict(zip(LAYER, mixed, strict=True)))


def _of_gpu(rows: Measurements) -> Measurements:
    """Unmeasured matrix products between those of one GPU's rows."""
    (ns, n), (ks, k) = (np.unique(rows.ops.column(name), return_inverse=True) for name in "nk")
    ms, known = np.unique(rows.ops.column("m")), np.zeros((len(ns), len(ks)), dtype=np.bool_)
    known[n, k] = True
    pairs = np.random.default_rng(0).permutation(np.argwhere(~known))[: int(MOST_UNMEASURED * len(rows) / len(ms))]
    columns = {"m": np.tile(ms, len(pairs)), "n": ns[pairs[:, 0]].repeat(len(ms)), "k": ks[pairs[:, 1]].repeat(len(ms))}
    return _like(rows, np.zeros(len(pairs) * len(ms), dtype=np.intp), columns)


def _like(rows: Measurements, like: Ints, columns: Mapping[str, Floats]) -> Measurements:
    """Unmeasured rows as the measured ones `like`, with other `columns`."""
    return Measurements(rows.ops.take(like).with_columns(columns), rows.gpu[like], np.ones(len(like)))


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
