"""Rank correlation of GPUs by predicted and by measured time of each model, with every GPU left out in turn.

A GPU is predicted from operators of the other GPUs only (evaluation.networks.models): of NVIDIA's those of
NeuSight's training GPUs in its training dimensions, of AMD's all. L4 and A100 80GB are never trained on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from math import log
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import kendalltau

from app.bands.coverage import COVERAGE
from app.bands.log_normal import CORRELATION, probability_of_order
from app.tables.operator_runs import OperatorRuns
from app.wire.prediction_form import Interval
from evaluation.data import TRAIN
from evaluation.networks.models import predictions_left_out
from evaluation.networks.neusight import AMD, NeuSightData
from evaluation.operators.folds import NEUSIGHT_TRAINING
from evaluation.render import Block, Report, Table
from evaluation.study import Progress, Result, grouped

GOAL = 0.9
# Least number of GPUs of an order.
LEAST_GPUS = 4
_BINS = 5
_MODEL = ("model", "mode", "sequence", "batch")


class Ranked(NamedTuple):
    """Prediction of one run, as by POST /predict, and its measured time."""

    gpu: str
    latency_ms: float
    interval_ms: Interval
    measured_ms: float


class Order(NamedTuple):
    """A model measured on several GPUs, sorted by measured time."""

    model: str
    mode: str
    sequence: int
    batch: int
    gpus: tuple[Ranked, ...]

    @property
    def tau(self) -> float:
        """Return Kendall's tau of the predicted and the measured order."""
        return float(kendalltau([each.latency_ms for each in self.gpus], [each.measured_ms for each in self.gpus])[0])


class Bin(NamedTuple):
    """Calibration bin: pairs of GPUs whose predicted order has a probability from `low` to `high`.

    stated  mean probability of the predicted order
    right   share of pairs whose predicted order is the measured one
    """

    low: float
    high: float
    pairs: int
    stated: float
    right: float


def evaluate_ranking(data: NeuSightData, *, most: int, progress: Progress) -> list[Order]:
    """Return the order of every model measured on LEAST_GPUS or more.

    `most`: largest number of training rows per operator and GPU.
    """
    single = (run for run in data.runs if not run.option)
    models = grouped(single, lambda run: (run.model, run.mode, run.sequence, run.batch))
    names = sorted({run.gpu for runs in models.values() if len(runs) >= LEAST_GPUS for run in runs})
    return orders(list(predictions_left_out(data, _training_rows(data), names, progress, most=most)))


def orders(cells: Sequence[Result]) -> list[Order]:
    """Return the orders of single-device results by model, batch and mode, with LEAST_GPUS or more GPUs each."""
    models = grouped((cell for cell in cells if not cell["option"]), lambda cell: tuple(cell[name] for name in _MODEL))
    return [
        Order(model, mode, sequence, batch, tuple(sorted(map(_ranked, alike), key=lambda ranked: ranked.measured_ms)))
        for (model, mode, sequence, batch), alike in sorted(models.items())
        if len(alike) >= LEAST_GPUS
    ]


def _ranked(cell: Result) -> Ranked:
    interval = Interval(cell["low_ms"], cell["high_ms"], COVERAGE)
    return Ranked(cell["gpu"], cell["predicted_ms"], interval, cell["measured_ms"])


def calibration(every: Sequence[Order]) -> list[Bin]:
    """Return the calibration bins: probability of the predicted order, from a half to one in _BINS equal steps."""
    stated, right = map(np.array, zip(*(pair for order in every for pair in _pairs(order)), strict=True))
    bin_of = np.minimum((2.0 * _BINS * (stated - 0.5)).astype(int), _BINS - 1)
    return [
        Bin(
            0.5 + k / (2 * _BINS),
            0.5 + (k + 1) / (2 * _BINS),
            int(mine.sum()),
            float(stated[mine].mean()),
            float(right[mine].mean()),
        )
        for k in range(_BINS)
        if (mine := bin_of == k).any()
    ]


def correlation(every: Sequence[Order]) -> float:
    """Return the correlation of the errors of two GPUs on one model, in units of the half interval on their side."""
    products, squares = list[float](), list[float]()
    for order in every:
        errors = [_error(ranked) for ranked in order.gpus]
        products += [a * b for a, b in combinations(errors, 2)]
        squares += [error**2 for error in errors]
    return float(np.mean(products) / np.mean(squares))


def _error(ranked: Ranked) -> float:
    """Return the log error in units of the half interval on its side."""
    error = log(ranked.measured_ms / ranked.latency_ms)
    end = ranked.interval_ms.high if error > 0 else ranked.interval_ms.low
    return error / abs(log(end / ranked.latency_ms))


def _pairs(order: Order) -> Iterator[tuple[float, bool]]:
    """Return for every pair of GPUs the probability of the predicted order, and whether it is the measured one."""
    for faster, slower in combinations(order.gpus, 2):
        known = ((ranked.latency_ms, ranked.interval_ms.band(ranked.latency_ms)) for ranked in (faster, slower))
        probability = probability_of_order(*known)
        yield max(probability, 1.0 - probability), probability > 0.5


def _training_rows(data: NeuSightData) -> list[OperatorRuns]:
    """Return the rows to train on, of all GPUs."""
    amd, nvidia = ([data.gpus.ids.index(name) for name in names] for names in (AMD, NEUSIGHT_TRAINING))
    train = []
    for cell in data.operators:
        gpu = cell.runs.rows.gpu
        train.append(cell.runs.take(np.flatnonzero(np.isin(gpu, amd) | ((cell.split == TRAIN) & np.isin(gpu, nvidia)))))
    return train


def mean_tau(every: Sequence[Order]) -> float:
    """Return Kendall's tau, the mean over models."""
    return float(np.mean([order.tau for order in every]))


def report(every: Sequence[Order]) -> Report:
    """Return a line per model, the mean, and the calibration of the probabilities of the orders."""
    columns = {"model": "", "mode": "", "sequence": "d", "batch": "d", "GPUs": "d", "tau": ".3f"}
    rows = [(*order[:4], len(order.gpus), order.tau) for order in every]
    bins, errors = calibration(every), correlation(every)
    stated = {"P(faster) stated": "", "pairs": "d", "mean stated": ".2f", "right": ".2f"}
    blocks: list[Block] = [
        Table("Order of GPUs, each left out in turn: Kendall's tau of predicted with measured", columns, rows),
        f"mean over {len(every)}: {mean_tau(every):.3f} (goal {GOAL})",
        Table("", stated, [(f"{bin_.low:.1f} to {bin_.high:.1f}", *bin_[2:]) for bin_ in bins]),
        f"correlation of errors of two GPUs: {errors:.2f}; assumed: {CORRELATION:g}",
    ]
    body = {
        "study": "ranking",
        "mean_tau": mean_tau(every),
        "correlation": errors,
        "bins": [bin_._asdict() for bin_ in bins],
        "models": [_body(order) for order in every],
    }
    return Report(blocks=blocks, body=body)


def _body(order: Order) -> dict[str, Any]:
    """Return the JSON record of a model."""
    gpus = [
        {
            "gpu": ranked.gpu,
            "measured_ms": ranked.measured_ms,
            "predicted_ms": ranked.latency_ms,
            "low_ms": ranked.interval_ms.low,
            "high_ms": ranked.interval_ms.high,
        }
        for ranked in order.gpus
    ]
    return {**order._asdict(), "tau": order.tau, "gpus": gpus}
