"""Predictions of times with host drift, the slowdown of a measuring process with its age, which no row records.

Predictors train on NeuSight's convolutions without host drift, which the importer subtracts (`importers.drift`). To be
compared with the times as measured, a prediction is changed to the best estimate for a process of unknown age.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from app.tables.arrays import Floats, Ints
from app.tables.predictions import Predictions

# Number of equally likely drifts: quantiles in the middle of so many equal shares.
QUANTILES = 64


def with_host_drift(predicted: Predictions, gpu: Ints, drift_s: Floats, drift_gpu: Ints) -> Predictions:
    """Return predictions for a process with a random one of the given drifts.

    gpu        int [n], GPU of each prediction
    drift_s    float64 [m], observed drifts, seconds
    drift_gpu  int [m], GPU of each drift; a GPU without drifts gets those of all others

    The time is that of least expected relative error: of the predicted time plus each drift, the median weighted by one
    over the sum. The interval is extended by the 10 and 90 % quantiles of the drift.
    """
    latency_s, low_s, high_s = (column.copy() for column in (predicted.latency_s, predicted.low_s, predicted.high_s))
    for target in np.unique(gpu):
        rows, own = np.flatnonzero(gpu == target), drift_gpu == target
        likely_s = np.quantile(drift_s[own] if own.any() else drift_s, (np.arange(QUANTILES) + 0.5) / QUANTILES)
        latency_s[rows] = _least_error(latency_s[rows, None] + likely_s)
        low_s[rows] += np.quantile(likely_s, 0.1)
        high_s[rows] += np.quantile(likely_s, 0.9)
    return replace(
        predicted, latency_s=latency_s, low_s=np.minimum(low_s, latency_s), high_s=np.maximum(high_s, latency_s)
    )


def _least_error(times_s: Floats) -> Floats:
    """Return the time of least mean relative error among k equally likely ones, ascending [n, k]; float64 [n]."""
    weight = np.cumsum(1.0 / times_s, axis=1)
    median = (weight < 0.5 * weight[:, -1:]).sum(axis=1)
    best: Floats = times_s[np.arange(len(times_s)), median]
    return best
