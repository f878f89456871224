"""Scores of operator predictions: errors, interval coverage and width, by operator, dtype and GPU, and pooled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from app.tables.arrays import Bools, Floats, Ints
from app.tables.predictions import Predictions

ALL = "all"


@dataclass(frozen=True, slots=True)
class RowErrors:
    """Errors of n answers with 80 % intervals.

    ratio     float64 [n], predicted / measured
    inside    bool [n], True if the measured time is in the interval
    width     float64 [n], high / low
    answered  bool [n], False for answers of the hardware limit
    gpu       int [n], row of the GpuTable
    """

    ratio: Floats
    inside: Bools
    width: Floats
    answered: Bools
    gpu: Ints

    @classmethod
    def of(cls, predicted: Predictions, measured_s: Floats, gpu: Ints) -> RowErrors:
        """Return the errors of predictions against measured times, seconds [n]."""
        inside = (predicted.low_s <= measured_s) & (measured_s <= predicted.high_s)
        width = predicted.high_s / predicted.low_s
        return cls(predicted.latency_s / measured_s, inside, width, predicted.answered, gpu)

    @classmethod
    def together(cls, parts: Sequence[RowErrors]) -> RowErrors:
        """Return the concatenation of errors."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__dataclass_fields__))

    def take(self, rows: Bools) -> RowErrors:
        """Return the given rows."""
        return RowErrors(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))


@dataclass(frozen=True, slots=True)
class CellErrors:
    """A predictor's errors on rows of one operator and dtype."""

    family: str
    op: str
    dtype: str
    errors: RowErrors


def score(errors: RowErrors) -> dict[str, float | int]:
    """Return the scores of a cell: errors, coverage and `answered` in percent, ratios plain.

    mape, median_ape, p95_ape  of |predicted / measured - 1|
    median_ratio  of predicted / measured: over 1 where answers are too long
    coverage_80   how many measured times lie in the 80 % interval; `width_80` is the median of its high / low
    answered      rows that the predictor itself answered; the hardware limit answered the others
    """
    ape = 100.0 * np.abs(errors.ratio - 1.0)
    return {
        "n": len(ape),
        "mape": round(float(ape.mean()), 2),
        "median_ape": round(float(np.median(ape)), 2),
        "p95_ape": round(float(np.quantile(ape, 0.95)), 2),
        "median_ratio": round(float(np.median(errors.ratio)), 3),
        "coverage_80": round(100.0 * float(errors.inside.mean()), 1),
        "width_80": round(float(np.median(errors.width)), 2),
        "answered": round(100.0 * float(errors.answered.mean()), 1),
    }


def score_rows(answers: Sequence[CellErrors], gpus: Sequence[str], apart: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the scores of one predictor by operator, dtype and GPU, and pooled over each of the three.

    Pooled scores weigh rows equally. Operators and dtypes are pooled within a family. Over GPUs there is a further
    pooled score without each of the GPUs `apart`.
    """
    for family in dict.fromkeys(one.family for one in answers):
        mine = [one for one in answers if one.family == family]
        ops, dtypes = (list(dict.fromkeys(getattr(one, name) for one in mine)) for name in ("op", "dtype"))
        for op in [*ops, *[ALL] * (len(ops) > 1)]:
            for dtype in [*dtypes, *[ALL] * (len(dtypes) > 1)]:
                parts = [one.errors for one in mine if op in (one.op, ALL) and dtype in (one.dtype, ALL)]
                if parts:
                    for gpu, figures in _by_gpu(RowErrors.together(parts), gpus, apart):
                        yield {"family": family, "op": op, "dtype": dtype, "gpu": gpu, **figures}


def _by_gpu(
    errors: RowErrors, gpus: Sequence[str], apart: Sequence[str]
) -> Iterator[tuple[str, dict[str, float | int]]]:
    yield ALL, score(errors)
    here = np.unique(errors.gpu)
    for gpu in here:
        yield gpus[gpu], score(errors.take(errors.gpu == gpu))
        if gpus[gpu] in apart and len(here) > 1:
            yield f"{ALL} but {gpus[gpu]}", score(errors.take(errors.gpu != gpu))


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
