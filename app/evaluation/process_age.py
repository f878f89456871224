"""Answers for a process that measured for so long that it had grown slower, by how much nothing tells.

NeuSight's convolutions are learned and asked without what their process added to them (`importers.drift`). To be
judged by the times as they stand, an answer becomes the best guess for a process of unknown age.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from app.tables.arrays import Floats, Ints
from app.tables.predictions import Predictions

# The ages that stand for all: quantiles of the drift in the middle of so many equal shares.
AGES = 64


def aged(predicted: Predictions, gpu: Ints, drift_s: Floats, drift_gpu: Ints) -> Predictions:
    """The same answers, of GPUs int [n], for a process as old as any of those whose drift was float64 [m], seconds.

    `drift_gpu` int [m] is the GPU of each; a GPU that has none is taken for any of the others. Of the answer's time and
    every drift it is the value of least expected relative error, their median weighted by one over the time; the
    interval goes from a young process to an old one, 10 and 90 % of the drifts.
    """
    latency_s, low_s, high_s = (column.copy() for column in (predicted.latency_s, predicted.low_s, predicted.high_s))
    for one in np.unique(gpu):
        rows, own = np.flatnonzero(gpu == one), drift_gpu == one
        ages_s = np.quantile(drift_s[own] if own.any() else drift_s, (np.arange(AGES) + 0.5) / AGES)
        latency_s[rows] = _least_error(latency_s[rows, None] + ages_s)
        low_s[rows] += np.quantile(ages_s, 0.1)
        high_s[rows] += np.quantile(ages_s, 0.9)
    return replace(
        predicted, latency_s=latency_s, low_s=np.minimum(low_s, latency_s), high_s=np.maximum(high_s, latency_s)
    )


def _least_error(times_s: Floats) -> Floats:
    """Of equally likely times [n, k], ascending, the one of least mean relative error, float64 [n]."""
    weight = np.cumsum(1.0 / times_s, axis=1)
    median = (weight < 0.5 * weight[:, -1:]).sum(axis=1)
    found: Floats = times_s[np.arange(len(times_s)), median]
    return found
