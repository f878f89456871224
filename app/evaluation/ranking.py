"""How well GPUs are ordered that were left out: predicted order of each measured model against the measured one.

Every GPU's answers come from operators of the other GPUs alone (app.evaluation.models_left_out): of NVIDIA's
those of NeuSight's training GPUs in its training dimensions, of AMD's all. L4 and A100 80GB never teach.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from math import log
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import kendalltau

from app.evaluation.models import Study
from app.evaluation.models_left_out import answers_left_out
from app.evaluation.neusight_models import AMD
from app.services.compare.likelihood import probability_faster
from app.tables.operator_runs import OperatorRuns
from app.training.operator_folds import NEUSIGHT_TRAINING, TRAIN
from app.wire.prediction_form import Interval

Result = dict[str, Any]

COVERAGE = 0.8
# With fewer GPUs an order says little.
LEAST_GPUS = 4
_BINS = 5
_MODEL = ("model", "mode", "sequence", "batch")


class Answer(NamedTuple):
    """One run as POST /predict would answer it, beside the time measured."""

    gpu: str
    latency_ms: float
    interval_ms: Interval
    measured_ms: float


class Order(NamedTuple):
    """A model measured on several GPUs, fastest first as measured."""

    model: str
    mode: str
    sequence: int
    batch: int
    answers: tuple[Answer, ...]

    @property
    def tau(self) -> float:
        """Kendall's tau of the predicted with the measured order."""
        return float(kendalltau([one.latency_ms for one in self.answers], [one.measured_ms for one in self.answers])[0])


class Bin(NamedTuple):
    """Pairs of GPUs by how likely the order predicted was said to be, and how often it was right."""

    low: float
    high: float
    pairs: int
    stated: float
    right: float


def evaluate_ranking(study: Study, *, most: int, progress: Callable[[str], None]) -> list[Order]:
    """Every model measured on LEAST_GPUS or more; `most` rows of each operator and GPU teach."""
    names = _names(study)
    cells = answers_left_out(study, _taught(study), names, progress, most=most)
    return orders([*cells])


def orders(cells: Sequence[Result]) -> list[Order]:
    """Cells of the same model on one device together, where there are enough of them."""
    found: dict[tuple[Any, ...], list[Answer]] = {}
    for cell in cells:
        if cell["option"]:
            continue
        interval = Interval(cell["low_ms"], cell["high_ms"], COVERAGE)
        answer = Answer(cell["gpu"], cell["predicted_ms"], interval, cell["measured_ms"])
        found.setdefault(tuple(cell[name] for name in _MODEL), []).append(answer)
    return [
        Order(model, mode, sequence, batch, tuple(sorted(answers, key=lambda one: one.measured_ms)))
        for (model, mode, sequence, batch), answers in sorted(found.items())
        if len(answers) >= LEAST_GPUS
    ]


def calibration(found: Sequence[Order]) -> list[Bin]:
    """Pairs by the probability of the order predicted, from a half to one in _BINS equal steps."""
    stated, right = map(np.array, zip(*(pair for order in found for pair in _pairs(order)), strict=True))
    at = np.minimum((2.0 * _BINS * (stated - 0.5)).astype(int), _BINS - 1)
    return [
        Bin(
            0.5 + k / (2 * _BINS),
            0.5 + (k + 1) / (2 * _BINS),
            int(mine.sum()),
            float(stated[mine].mean()),
            float(right[mine].mean()),
        )
        for k in range(_BINS)
        if (mine := at == k).any()
    ]


def correlation(found: Sequence[Order]) -> float:
    """Of the errors of two GPUs on one model, each in units of its interval's half that it fell into."""
    products, squares = list[float](), list[float]()
    for order in found:
        errors = [_error(one) for one in order.answers]
        products += [a * b for a, b in combinations(errors, 2)]
        squares += [error**2 for error in errors]
    return float(np.mean(products) / np.mean(squares))


def _error(one: Answer) -> float:
    off = log(one.measured_ms / one.latency_ms)
    end = one.interval_ms.high if off > 0 else one.interval_ms.low
    return off / abs(log(end / one.latency_ms))


def _pairs(order: Order) -> Iterator[tuple[float, bool]]:
    """Of every two GPUs, how likely the order predicted is said to be, and whether it is the measured one."""
    for faster, slower in combinations(order.answers, 2):
        likely = probability_faster(faster, slower)
        yield max(likely, 1.0 - likely), likely > 0.5


def _names(study: Study) -> list[str]:
    """GPUs with a model that was measured on enough of them."""
    found: dict[tuple[Any, ...], list[str]] = {}
    for run in study.runs:
        if not run.option:
            found.setdefault(tuple(getattr(run, name) for name in _MODEL), []).append(run.gpu)
    return sorted({gpu for gpus in found.values() if len(gpus) >= LEAST_GPUS for gpu in gpus})


def _taught(study: Study) -> list[OperatorRuns]:
    """Rows that may teach, of whatever GPU."""
    amd, nvidia = ([study.gpus.ids.index(name) for name in names] for names in (AMD, NEUSIGHT_TRAINING))
    taught = []
    for cell in study.operators:
        gpu = cell.runs.rows.gpu
        taught.append(
            cell.runs.take(np.flatnonzero(np.isin(gpu, amd) | ((cell.split == TRAIN) & np.isin(gpu, nvidia))))
        )
    return taught
