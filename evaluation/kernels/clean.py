"""The cross-GPU kernels paper's three experiments, as its text describes them, on cleaned rows.

experiment 1  a new GPU: the target GPU's rows are not trained on; each of its launches is predicted from the same
              launch on one other GPU at a time; "1-untrained": without any training; "1-launch": with the target's
              launch overhead known (the shortest time measured on it)
experiment 2  a new size: the largest size of every kernel on a GPU is predicted from its smaller sizes there
experiment 3  a new kernel: neither the four test kernels nor the target GPU are trained on; each of the test
              kernels' launches is predicted from the same launch on one other GPU at a time ("3"), and without
              measurements ("3-unmeasured")

Thresholds and intervals come from the training rows of each cell, never from test rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.bands.conformal import Intervals
from app.bands.coverage import COVERAGE
from app.engine.engine import finished
from app.ops.kernel import FIELD_INDEX
from app.predictors import PREDICTORS
from app.predictors.auto.kernels.kernel_costs import launch_floors
from app.predictors.base import Predictor
from app.predictors.launches import launch_ids
from app.predictors.roofline import hardware_limit
from app.tables.arrays import Floats, Ints
from app.tables.gpus import COLUMN_INDEX, GpuTable
from app.tables.measurements import Evidence, Measurements
from app.training.fit import SPLITS, folds, residuals
from evaluation.kernels.authors import TEST_KERNELS, score
from evaluation.study import Result

EXPERIMENTS = ("1", "1-untrained", "1-launch", "2", "3", "3-unmeasured")
# Predictors with intervals, which need a refit on every fold: forests would take minutes. Only ours uses a launch
# overhead.
OURS = ("auto",)
_CONFIGURATION = np.array([FIELD_INDEX[name] for name in ("n", "rows", "cols", "threads_per_block")])


@dataclass(frozen=True, slots=True)
class Task:
    """One fit and its tests: training rows, test rows, and one or more evidence rows per test row."""

    experiment: str
    train: Ints
    query: Ints
    source: Ints
    position: Ints


def one_per_configuration(measurements: Measurements) -> Ints:
    """Return the configuration of every row, int [m]: kernel, size and block, without iterations (the paper's key)."""
    labels = np.unique(measurements.ops.label, return_inverse=True)[1]
    key = np.vstack([labels, np.nan_to_num(measurements.ops.dims[_CONFIGURATION])])
    return np.unique(key, axis=1, return_inverse=True)[1].ravel()


def _first_rows(measurements: Measurements) -> Ints:
    """Return the first row of every configuration and GPU, as in the paper."""
    key = np.stack([one_per_configuration(measurements), measurements.gpu])
    return np.sort(np.unique(key, axis=1, return_index=True)[1])


def tasks(measurements: Measurements, kernels: NDArray[np.str_]) -> Iterator[Task]:
    """Yield every fit of the three experiments; `kernels` [m] are the rows' kernel names."""
    first, configuration = _first_rows(measurements), one_per_configuration(measurements)
    tested = np.isin(kernels, TEST_KERNELS)
    for gpu in np.unique(measurements.gpu):
        seen = np.flatnonzero(measurements.gpu != gpu)
        queried, others = first[measurements.gpu[first] == gpu], first[measurements.gpu[first] != gpu]
        target, source = np.nonzero(configuration[queried][:, None] == configuration[others])
        query, evidence = queried[target], others[source]
        none = np.empty(0, dtype=np.intp)
        yield Task("1", seen, query, evidence, np.arange(len(query)))
        yield Task("1-untrained", none, query, evidence, np.arange(len(query)))
        yield Task("1-launch", seen, query, evidence, np.arange(len(query)))
        new = tested[query]
        unknown = seen[~tested[seen]]
        yield Task("3", unknown, query[new], evidence[new], np.arange(np.count_nonzero(new)))
        yield Task("3-unmeasured", unknown, queried[tested[queried]], none, none)
    for fold in folds(measurements, launch_ids(measurements.ops)):
        if fold.split == "size_held_out":
            yield Task("2", fold.train, fold.query, fold.source, fold.position)


@dataclass(frozen=True, slots=True)
class _Answers:
    """n predictions of one experiment: seconds, measured seconds, GPU, and True if inside the interval."""

    predicted: Floats
    measured: Floats
    gpu: Ints
    inside: Floats


def evaluate(
    measurements: Measurements, gpus: GpuTable, kernels: Sequence[str], predictors: Sequence[Any] = PREDICTORS
) -> list[Result]:
    """Return all cells of the clean protocol: every predictor, experiment and GPU ("all" pools them)."""
    names = np.array(kernels)
    all_tasks = list(tasks(measurements, names))
    timed = _with_overheads(gpus, measurements)
    cells: list[Result] = []
    for predictor in predictors:
        for experiment in EXPERIMENTS:
            if experiment == "1-untrained" and (predictor.can.needs_training or not predictor.can.trainable):
                continue
            if experiment == "1-launch" and predictor.name not in OURS:
                continue
            mine = [task for task in all_tasks if task.experiment == experiment]
            known = timed if experiment == "1-launch" else gpus
            parts = [_answer(predictor, task, measurements, known) for task in mine]
            answers = _Answers(*(np.concatenate([getattr(p, f) for p in parts]) for f in _Answers.__slots__))
            cells += _cells(predictor.name, experiment, answers, gpus)
    return cells


def _with_overheads(gpus: GpuTable, measurements: Measurements) -> GpuTable:
    """Return the GPUs with the shortest measured time as launch overhead."""
    values = gpus.values.copy()
    for gpu, floor_s in launch_floors(measurements, gpus).items():
        values[COLUMN_INDEX["launch_overhead_s"], gpus.ids.index(gpu)] = floor_s
    return GpuTable(gpus.ids, values, gpus.architectures)


def _answer(predictor: Any, task: Task, measurements: Measurements, gpus: GpuTable) -> _Answers:
    train = measurements.take(task.train)
    gpu, measured = measurements.gpu[task.query], measurements.latency_s[task.query]
    evidence = Evidence(measurements.take(task.source), task.position)
    fitted = _fit(predictor, train, gpus)
    estimate = fitted.predict(measurements.ops, gpus, task.query, gpu, evidence=evidence)
    limit = hardware_limit(measurements.ops, gpus, task.query, gpu)
    predicted = np.maximum(estimate.latency_s, limit.latency_s)
    inside = np.full(len(gpu), np.nan)
    if predictor.name in OURS and task.experiment != "1-launch":  # whose intervals are those of "1"
        answer = finished(estimate, limit, _intervals(predictor, train, gpus).log_offsets(COVERAGE), COVERAGE)
        inside = ((answer.low_s <= measured) & (measured <= answer.high_s)).astype(np.float64)
    return _Answers(predicted, measured, gpu, inside)


def _intervals(predictor: Any, train: Measurements, gpus: GpuTable) -> Intervals:
    if not len(train):
        return Intervals.prior()
    inner = list(folds(train, launch_ids(train.ops)))
    return residuals(lambda rows: _fit(predictor, rows, gpus), train, gpus, inner, SPLITS).intervals()


def _fit(predictor: Any, train: Measurements, gpus: GpuTable) -> Predictor:
    fitted: Predictor = predictor().fit(train, gpus) if predictor.can.trainable and len(train) else predictor()
    return fitted


def _cells(predictor: str, experiment: str, answers: _Answers, gpus: GpuTable) -> list[Result]:
    cells: list[Result] = []
    for gpu in (None, *np.unique(answers.gpu)):
        mine = np.isfinite(answers.predicted) & (True if gpu is None else answers.gpu == gpu)
        if not mine.any():
            continue
        figures = dict(score(answers.predicted[mine], answers.measured[mine]))
        about: dict[str, Any] = {"table": None, "protocol": "clean", "experiment": experiment, "predictor": predictor}
        about |= {"gpu": "all" if gpu is None else gpus.ids[gpu], "paper": None, "n": int(figures.pop("n"))}
        if not np.isnan(answers.inside[mine]).any():
            figures["coverage_80"] = 100.0 * float(answers.inside[mine].mean())
        cells += [about | {"metric": metric, "measured": round(value, 4)} for metric, value in figures.items()]
    return cells
