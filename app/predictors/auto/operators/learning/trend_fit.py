"""Fit of the trend of a GPU's times over the parts of an operator (models.trend), by non-negative least squares."""

from __future__ import annotations

import numpy as np

from app.coefficients import Coefficients
from app.predictors.auto.operators.models.trend import NO_TREND, PRESENT, Axes, Trend
from app.tables.arrays import Floats, Singles

_FITTED = Coefficients("learning")

# Least rows of a class with constants of its own.
_LEAST_ROWS = 30
# Rounds of least squares in which rows count less the further off they are in log space, from _CLEAR on: throttled
# runs, and kernels that no part tells.
_ROUNDS, _CLEAR = 6, _FITTED.number("trend_clear")
# How much the constants are shrunk, per row: parts that grow together share what is theirs.
_SHRINKAGE = _FITTED.number("trend_shrinkage")
# Least share of a time that a sum of parts has, of which there is a logarithm.
_LEAST_SHARE = 1e-9


def fitted_trend(features: Singles, latency_s: Floats, axes: Axes) -> Trend:
    """Return the trend of `latency_s` [n] over `features` float32 [columns, n]; none of an operator without parts."""
    if not axes.part:
        return NO_TREND
    logs, code = features[list(axes.part)].astype(np.float64), features[list(axes.key)]
    present = logs > PRESENT
    amounts = np.where(present, np.exp(logs), 0.0)
    code[: len(amounts)] = present
    # A part that all rows have, or none, tells no classes.
    kept = np.flatnonzero((np.arange(len(code)) >= len(amounts)) | (np.ptp(code, axis=1) > 0.0))
    known, found, rows = np.unique(code[kept], axis=1, return_inverse=True, return_counts=True)
    large = np.flatnonzero(rows >= _LEAST_ROWS)
    classes = [np.flatnonzero(found.ravel() == k) for k in large]
    weight = [_weights(amounts, latency_s), *(_weights(amounts[:, here], latency_s[here]) for here in classes)]
    part, key = np.array(axes.part, dtype=np.int16), np.array(axes.key, dtype=np.int16)[kept]
    member = np.ascontiguousarray(known[:, large].T)
    return Trend(part, key, member, np.array(weight, dtype=np.float32), int((kept < len(amounts)).sum()))


def _weights(amounts: Floats, latency_s: Floats) -> Floats:
    """Return the seconds of one of each part, [parts], whose sum over `amounts` [parts, n] is near `latency_s` [n].

    What counts is the relative error.
    """
    from scipy.optimize import nnls  # noqa: PLC0415  (training alone needs it, and it takes memory)

    some = amounts.any(axis=1)
    relative, counts, weights = (amounts[some] / latency_s).T, np.ones(len(latency_s)), np.zeros(len(amounts))
    found = weights[some]
    for _ in range(_ROUNDS):
        rows = np.column_stack([relative, np.ones(len(counts))]) * counts[:, None]
        size = np.sqrt((rows[:, :-1] ** 2).mean(axis=0))
        shrinking = np.column_stack([np.eye(len(size)), np.zeros(len(size))]) * np.sqrt(_SHRINKAGE * len(counts))
        # The triangle has the same least squares as all rows.
        triangle = np.asarray(np.linalg.qr(np.concatenate([rows / [*size, 1.0], shrinking]), mode="r"))
        found = nnls(triangle[:, :-1], triangle[:, -1])[0] / size
        off = np.abs(np.log(np.maximum(relative @ found, _LEAST_SHARE)))
        counts = 1.0 / np.sqrt(np.maximum(off, _CLEAR))
    weights[some] = found
    return weights
