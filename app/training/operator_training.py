"""A predictor of operators fitted to measured rows, and how far it was off on rows that were held out of it.

Three ways of holding out give each situation of an answer its own residuals: whole configurations on GPUs that are
learned from (`seen`); each GPU in turn (`sibling`, `unseen`); and the same GPU with a few of its rows measured
(`calibrated`). Interval widths come from these residuals, each GPU with equally many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.errors import NotTrained
from app.ops import OP_CODE
from app.predictors.base import OperatorLearner, Predictor
from app.predictors.intervals import Intervals
from app.predictors.roofline import hardware_limit
from app.tables.gpus import GpuTable
from app.tables.measurements import Evidence
from app.tables.operator_runs import OperatorRuns
from app.tables.ops import DTYPE_CODE
from app.training.operator_folds import HELD_OUT, chosen, configurations, hashed, mixed

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
Bools = NDArray[np.bool_]

SPLITS = ("configuration_held_out", "gpu_held_out", "few_measured")
# Held-out rows that are asked of each cell and GPU, rows that teach when a GPU is held out, and rows measured of it.
MOST_ASKED, MOST_TAUGHT, FEW = 500, 2000, 32


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Answers to rows that were held out, n of them.

    key          uint64 [n], the row's, as in OperatorRuns
    kind, dtype  int [n], its cell
    gpu          int [n], row of the GpuTable
    split        int [n], code into SPLITS
    group        int [n], residual group of the answer (app.predictors.intervals)
    log_ratio    float64 [n], log(measured / predicted)
    """

    key: NDArray[np.uint64]
    kind: Ints
    dtype: Ints
    gpu: Ints
    split: Ints
    group: Ints
    log_ratio: Floats

    def take(self, rows: NDArray[Any]) -> HeldOut:
        """Some of them."""
        return HeldOut(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))

    def intervals(self) -> Intervals:
        """Conformal intervals from these answers."""
        return Intervals.from_residuals(self.log_ratio, self.group, self.gpu)


@dataclass(frozen=True, slots=True)
class TrainedOperators:
    """A fitted predictor, its intervals, and the held-out answers behind them."""

    predictor: Any
    intervals: Intervals
    held_out: HeldOut


def trained(
    start: OperatorLearner,
    runs: Sequence[OperatorRuns],
    gpus: GpuTable,
    progress: Callable[[str], None] = lambda line: None,
) -> TrainedOperators:
    """`start` with `runs` learned, and validated on what was held out of a predictor that knew nothing before.

    NotTrained where there is too little to learn from; what cannot be held out leaves its intervals as documented.
    """
    progress("fitting")
    predictor = start.fit_operators(runs, gpus)
    parts = list(_held_out(type(start), runs, gpus, progress))
    found = HeldOut(*(np.concatenate(columns) for columns in zip(*map(_columns, [_nothing(), *parts]), strict=True)))
    return TrainedOperators(predictor, found.intervals(), found)


def _held_out(
    learner: type[Any], runs: Sequence[OperatorRuns], gpus: GpuTable, progress: Callable[[str], None]
) -> Iterator[HeldOut]:
    progress("configurations held out")
    held = [_configurations_out(run) for run in runs]
    fitted = _fitted(learner, [run.take(np.flatnonzero(~out)) for run, out in zip(runs, held, strict=True)], gpus)
    if fitted is not None:
        for run, out in zip(runs, held, strict=True):
            yield _answered(fitted, _fewer(run.take(np.flatnonzero(out)), MOST_ASKED), gpus, 0)
    few = [_fewer(run, MOST_TAUGHT) for run in runs]
    for gpu in sorted({int(one) for run in runs for one in np.unique(run.rows.gpu)}):
        yield from _gpu_out(learner, few, gpu, gpus, progress)


def _gpu_out(
    learner: type[Any], runs: Sequence[OperatorRuns], gpu: int, gpus: GpuTable, progress: Callable[[str], None]
) -> Iterator[HeldOut]:
    """One GPU held out: asked without any of its rows, then with a few."""
    here = [run for run in runs if (run.rows.gpu == gpu).any() and (run.rows.gpu != gpu).any()]
    if not here:
        return
    progress(f"{gpus.ids[gpu]} held out")
    fitted = _fitted(learner, [run.take(np.flatnonzero(run.rows.gpu != gpu)) for run in here], gpus)
    if fitted is None:
        return
    mine = [_fewer(run.take(np.flatnonzero(run.rows.gpu == gpu)), MOST_ASKED + FEW) for run in here]
    for run in mine:
        yield _answered(fitted, run, gpus, 1)
    if hasattr(fitted, "with_measured"):
        told = fitted.with_measured([run.take(np.arange(min(FEW, len(run)))) for run in mine], gpus)
        for run in mine:
            yield _answered(told, run.take(np.arange(min(FEW, len(run)), len(run))), gpus, 2)


def _fitted(learner: type[Any], runs: Sequence[OperatorRuns], gpus: GpuTable) -> Any:
    """The learner fitted to what rows there are; None where they are too few."""
    try:
        return learner().fit_operators([run for run in runs if len(run)], gpus)
    except NotTrained:
        return None


def _configurations_out(run: OperatorRuns) -> Bools:
    """A fifth of the configurations; of the rows, where there are too few configurations to tell apart."""
    hashes = configurations(run)
    few = len(np.unique(hashes)) < 20
    return chosen(mixed(hashed(run.rows.ops) if few else hashes, np.uint64(7)), HELD_OUT)


def _fewer(run: OperatorRuns, most: int) -> OperatorRuns:
    """At most `most` rows of each GPU, as good as drawn at random, in the order of the draw."""
    order = np.argsort(mixed(run.key, np.uint64(3)), kind="stable")
    gpu = run.rows.gpu[order]
    return run.take(np.concatenate([np.empty(0, np.intp), *(order[gpu == one][:most] for one in np.unique(gpu))]))


def _answered(predictor: Predictor, run: OperatorRuns, gpus: GpuTable, split: int) -> HeldOut:
    """What the predictor answers to rows, those without support left out."""
    n = len(run)
    if n == 0:
        return _nothing()
    i, none = np.arange(n), np.empty(0, dtype=np.intp)
    rows = run.rows
    estimate = predictor.predict(rows.ops, gpus, i, rows.gpu, evidence=Evidence(rows.take(none), none))
    limit = hardware_limit(rows.ops, gpus, i, rows.gpu).latency_s
    log_ratio = np.log(rows.latency_s / np.maximum(estimate.latency_s, limit))
    kind, dtype = np.full(n, OP_CODE[run.op]), np.full(n, DTYPE_CODE[run.dtype])
    answers = HeldOut(run.key, kind, dtype, rows.gpu, np.full(n, split), estimate.group, log_ratio)
    return answers.take(np.isfinite(log_ratio))


def _nothing() -> HeldOut:
    empty = np.empty(0, dtype=np.intp)
    return HeldOut(np.empty(0, dtype=np.uint64), empty, empty, empty, empty, empty, np.empty(0))


def _columns(answers: HeldOut) -> list[NDArray[Any]]:
    return [getattr(answers, name) for name in HeldOut.__dataclass_fields__]
