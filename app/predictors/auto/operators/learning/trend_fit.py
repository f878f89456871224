"""Fit of the trend of a GPU's residuals over the dimensions of a layer (models.trend), by ridge regression."""

from __future__ import annotations

import numpy as np

from app.predictors.auto.operators.models.trend import NO_TREND, Axes, Trend, fill_terms_at, terms_of
from app.runtime.compiled import compiled
from app.tables.arrays import Floats, Ints, Singles

# Rows of residual zero that each coefficient counts as.
_SHRINKAGE = 30.0
# Least rows of a class with coefficients of its own.
_LEAST_ROWS = 30
# How far beyond the measured layers the trend goes on: to half or twice a size, and with it the time.
_BEYOND = np.log(2.0)
# Least standard deviation of a feature that varies.
_VARIES = 1e-4


def fitted_trend(features: Singles, residual: Floats, axes: Axes) -> Trend:
    """Return the trend of `residual` [n] over `features` float32 [columns, n]; none where no layer differs."""
    layer, load = ([row for row in rows if features[row].std() > _VARIES] for rows in (axes.layer, axes.load))
    if not layer:
        return NO_TREND
    column, beyond = np.array([*layer, *load]), np.array([_BEYOND] * len(layer) + [0.0] * len(load))
    size = features[column].astype(np.float64)
    low, high = size.min(axis=1) - beyond, size.max(axis=1) + beyond
    key = np.array(axes.key)
    code = features[key]
    code[: axes.phases] = code[: axes.phases] > 0.0
    known, found, rows = np.unique(code, axis=1, return_inverse=True, return_counts=True)
    large = rows >= _LEAST_ROWS
    member, classes = np.ascontiguousarray(known[:, large].T), np.where(large, np.cumsum(large), 0)[found.ravel()]
    center = size.mean(axis=1)
    terms = np.empty((len(residual), terms_of(len(column), len(layer))))
    _fill_terms(size - center[:, None], len(layer), terms)
    weight = _ridge(terms, residual, classes, len(member))
    of_class = [residual, *(residual[classes == k] for k in range(1, 1 + len(member)))]
    span = [(here.min() - _BEYOND, here.max() + _BEYOND) for here in of_class]
    place, columns = np.array([center, low, high], dtype=np.float32), (column.astype(np.int16), key.astype(np.int16))
    parts = (member, weight.astype(np.float32), np.array(span, dtype=np.float32))
    return Trend(columns[0], place, columns[1], *parts, len(layer), axes.phases)


def _ridge(terms: Floats, target: Floats, classes: Ints, count: int) -> Floats:
    """Return the coefficients [1 + count, t] of `terms` [n, t] that fit `target` [n]: of all rows, and of each class.

    Those of a class are the sum of what all rows have in common and of what sets the class apart; each is shrunk.
    """
    size = terms.shape[1]
    gram, moment = np.zeros((1 + count, size, 1 + count, size)), np.empty((1 + count, size))
    gram[0, :, 0], moment[0] = terms.T @ terms, terms.T @ target
    for k in range(1, 1 + count):
        here = terms[classes == k]
        gram[0, :, k] = gram[k, :, 0] = gram[k, :, k] = here.T @ here
        moment[k] = here.T @ target[classes == k]
    whole = gram.reshape(moment.size, moment.size)
    whole[np.diag_indices(len(whole))] += _SHRINKAGE
    found = np.linalg.solve(whole, moment.ravel()).reshape(moment.shape).astype(np.float64)
    found[1:] += found[0]
    return found


@compiled
def _fill_terms(place: Floats, layers: int, terms: Floats) -> None:
    """Fill the terms [n, terms] of all rows at `place` [d, n]."""
    for n in range(len(terms)):
        fill_terms_at(place[:, n].copy(), layers, terms[n])
