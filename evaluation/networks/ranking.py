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

from app.bands.band import Band, probability_of_order
from app.bands.coverage import COVERAGE
from app.bands.error_model import Levels, error_models
from app.tables.measurements import OperatorRuns
from app.wire.prediction_form import Interval
from evaluation.data import TRAIN
from evaluation.networks.models import predictions_left_out
from evaluation.networks.neusight import AMD, NeuSightData
from evaluation.operators.folds import NEUSIGHT_TRAINING
from evaluation.render import Block, Report, Table
from evaluation.study import Progress, Result, grouped

GOAL = 0.9
# Variance that errors of eager networks have in common on different GPUs.
_IN_COMMON = error_models()["step"].in_common(
    Levels("pytorch", "dense", format="fp32", version="pytorch", devices="one")
)
# Least number of GPUs of an order.
LEAST_GPUS = 4
_BINS = 5
_MODEL = ("model", "mode", "sequence", "batch")


class Order(NamedTuple):
    """A model measured on several GPUs: the results, sorted by measured time."""

    model: str
    mode: str
    sequence: int
    batch: int
    gpus: tuple[Result, ...]

    @property
    def tau(self) -> float:
        """Return Kendall's tau of the predicted and the measured order."""
        times = ([cell[name] for cell in self.gpus] for name in ("predicted_ms", "measured_ms"))
        return float(kendalltau(*times)[0])


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
        Order(model, mode, sequence, batch, tuple(sorted(alike, key=lambda cell: float(cell["measured_ms"]))))
        for (model, mode, sequence, batch), alike in sorted(models.items())
        if len(alike) >= LEAST_GPUS
    ]


def calibration(every: Sequence[Order], common: float = _IN_COMMON) -> list[Bin]:
    """Return the calibration bins: probability of the predicted order, from a half to one in _BINS equal steps."""
    stated, right = map(np.array, zip(*(pair for order in every for pair in _pairs(order, common)), strict=True))
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
        errors = [_error(cell) for cell in order.gpus]
        products += [a * b for a, b in combinations(errors, 2)]
        squares += [error**2 for error in errors]
    return float(np.mean(products) / np.mean(squares))


def _error(cell: Result) -> float:
    """Return the log error in units of the half interval on its side."""
    error = log(cell["measured_ms"] / cell["predicted_ms"])
    return error / abs(log(cell["high_ms" if error > 0 else "low_ms"] / cell["predicted_ms"]))


def _band(cell: Result) -> Band[float]:
    return Interval(cell["low_ms"], cell["high_ms"], COVERAGE).band(cell["predicted_ms"])


def _pairs(order: Order, common: float) -> Iterator[tuple[float, bool]]:
    """Return for every pair of GPUs the probability of the predicted order, and whether it is the measured one."""
    for pair in combinations(order.gpus, 2):
        faster, slower = ((cell["predicted_ms"], _band(cell)) for cell in pair)
        probability = probability_of_order(faster, slower, common)
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
        f"correlation of errors of two GPUs, in units of their intervals: {errors:.2f}",
    ]
    body = {
        "study": "ranking",
        "mean_tau": mean_tau(every),
        "correlation": errors,
        "bins": [bin_._asdict() for bin_ in bins],
        "models": [{**order._asdict(), "tau": order.tau, "gpus": list(map(_body, order.gpus))} for order in every],
    }
    return Report(blocks=blocks, body=body)


def _body(cell: Result) -> dict[str, Any]:
    return {name: cell[name] for name in ("gpu", "measured_ms", "predicted_ms", "low_ms", "high_ms")}
