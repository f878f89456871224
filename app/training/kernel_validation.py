"""Held-out validation of kernel predictors: folds of rows, queries and evidence; residuals, accuracy card, intervals.

Three splits, each as folds of (training rows, queries with their evidence):
gpu_held_out     one GPU's rows are not trained on; they are predicted from one row on another GPU at a time
size_held_out    every kernel's largest size on each GPU is predicted from its smaller sizes there
kernel_held_out  one kernel's rows are not trained on; they are predicted without evidence, and from another
                 kernel's row on the same GPU
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.bands.conformal import LEAST_RESIDUALS, Intervals
from app.bands.coverage import COVERAGE
from app.ops.kernel import FIELD_INDEX
from app.predictors.base import Predictor
from app.predictors.roofline import hardware_limit
from app.tables.arrays import Floats, Ints
from app.tables.gpus import GpuTable
from app.tables.measurements import Evidence, Measurements

_LANES = FIELD_INDEX["lane_operations"]
SPLITS = ("gpu_held_out", "size_held_out", "kernel_held_out")


@dataclass(frozen=True, slots=True)
class Fold:
    """One fold over the rows of a Measurements table.

    train  int [t], rows to fit on
    query  int [n], rows to predict, repeats allowed
    source, position  int [e] each: measured row `source[k]` is evidence for query `position[k]`
    """

    split: str
    train: Ints
    query: Ints
    source: Ints
    position: Ints

    def evidence(self, measurements: Measurements) -> Evidence:
        """Return the evidence of the queries."""
        return Evidence(measurements.take(self.source), self.position)


def folds(measurements: Measurements, launch: Ints) -> Iterator[Fold]:
    """Yield all folds; `launch` int [rows] is equal for rows of the same launch on any GPU."""
    yield from _by_gpu(measurements, launch)
    yield from _by_size(measurements)
    yield from _by_kernel(measurements)


def _by_gpu(measurements: Measurements, launch: Ints) -> Iterator[Fold]:
    label, gpu = measurements.ops.label, measurements.gpu
    size = np.log(measurements.ops.dims[_LANES])
    for held in np.unique(gpu):
        train = np.flatnonzero(gpu != held)
        query: list[int] = []
        source: list[int] = []
        for row in np.flatnonzero(gpu == held).tolist():
            same = train[launch[train] == launch[row]]
            others = train[(label[train] == label[row]) & (launch[train] != launch[row])]
            nearest = others[np.argsort(np.abs(size[others] - size[row]), kind="stable")[:1]]
            source += [*same.tolist(), *nearest.tolist()]
            query += [row] * (len(same) + len(nearest))
        yield _single("gpu_held_out", train, query, source)


def _single(split: str, train: Ints, query: list[int], source: list[int]) -> Fold:
    """Return a fold with one source per query."""
    rows, sources = np.array(query, dtype=np.intp), np.array(source, dtype=np.intp)
    return Fold(split, train, rows, sources, np.arange(len(rows)))


def _by_size(measurements: Measurements) -> Iterator[Fold]:
    size = measurements.ops.dims[_LANES]
    held: list[int] = []
    source: list[int] = []
    position: list[int] = []
    for label, gpu in np.unique(np.stack([measurements.ops.label, measurements.gpu]), axis=1).T:
        rows = np.flatnonzero((measurements.ops.label == label) & (measurements.gpu == gpu))
        largest = rows[np.argmax(size[rows])]
        smaller = rows[size[rows] < size[largest]]
        if len(smaller):
            position += [len(held)] * len(smaller)
            source += smaller.tolist()
            held.append(int(largest))
    query = np.array(held, dtype=np.intp)
    train = np.setdiff1d(np.arange(len(measurements)), query)
    yield Fold("size_held_out", train, query, np.array(source, dtype=np.intp), np.array(position, dtype=np.intp))


def _by_kernel(measurements: Measurements) -> Iterator[Fold]:
    label, gpu = measurements.ops.label, measurements.gpu
    size = np.log(measurements.ops.dims[_LANES])
    for held in np.unique(label):
        train, rows = np.flatnonzero(label != held), np.flatnonzero(label == held)
        source: list[int] = []
        position: list[int] = []
        for k, row in enumerate(rows):
            others = train[gpu[train] == gpu[row]]
            source += others[np.argsort(np.abs(size[others] - size[row]), kind="stable")[:1]].tolist()
            position += [len(rows) + k] * min(len(others), 1)
        query = np.concatenate([rows, rows])
        yield Fold("kernel_held_out", train, query, np.array(source, dtype=np.intp), np.array(position, dtype=np.intp))


@dataclass(frozen=True, slots=True)
class Residuals:
    """Held-out answers, n of them.

    log_ratio  float64 [n], log(measured / predicted)
    row        int [n], row of the Measurements table
    gpu        int [n], its GPU
    kernel     int [n], its kernel's label
    group      int [n], code into app.bands.groups.GROUPS
    split      int [n], code into the requested `splits`
    """

    log_ratio: Floats
    row: Ints
    gpu: Ints
    kernel: Ints
    group: Ints
    split: Ints

    def take(self, rows: NDArray[Any]) -> Residuals:
        """Return the given answers."""
        return Residuals(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))

    def intervals(self) -> Intervals:
        """Return conformal intervals of these answers."""
        return Intervals.from_residuals(self.log_ratio, self.group, self.kernel)

    @property
    def error(self) -> Floats:
        """Absolute relative error of the prediction, float64 [n]."""
        return np.abs(np.exp(-self.log_ratio) - 1.0)


def residuals(
    fit: Callable[[Measurements], Predictor | None],
    measurements: Measurements,
    gpus: GpuTable,
    folds: Sequence[Fold],
    splits: Sequence[str],
) -> Residuals:
    """Return the answers of a predictor refitted on each fold's training rows, without unsupported queries.

    `fit` returns None for a fold with too few rows.
    """
    parts = []
    for fold in folds:
        if not len(fold.query) or not len(fold.train):
            continue
        if (predictor := fit(measurements.take(fold.train))) is None:
            continue
        gpu = measurements.gpu[fold.query]
        ops = measurements.ops
        estimate = predictor.predict(ops, gpus, fold.query, gpu, evidence=fold.evidence(measurements))
        floor = hardware_limit(ops, gpus, fold.query, gpu).latency_s
        log_ratio = np.log(measurements.latency_s[fold.query] / np.maximum(estimate.latency_s, floor))
        split = np.full(len(gpu), splits.index(fold.split))
        part = Residuals(log_ratio, fold.query, gpu, ops.label[fold.query], estimate.group, split)
        parts.append(part.take(np.isfinite(log_ratio)))
    columns = Residuals.__dataclass_fields__
    empty = Residuals(np.empty(0), *(np.empty(0, dtype=np.intp) for _ in range(5)))
    return Residuals(*(np.concatenate([getattr(part, name) for part in [empty, *parts]]) for name in columns))


def covered(held: Residuals, coverage: float) -> NDArray[np.bool_]:
    """Return True for answers inside the interval of the other GPUs' residuals, bool [n]."""
    inside = np.zeros(len(held.log_ratio), dtype=bool)
    for gpu in np.unique(held.gpu):
        mine = held.gpu == gpu
        low, high = held.take(~mine).intervals().log_offsets(coverage)
        inside[mine] = (held.log_ratio[mine] >= low[held.group[mine]]) & (
            held.log_ratio[mine] <= high[held.group[mine]]
        )
    return inside


def few(rows: int) -> dict[str, str]:
    """Return the card's note for figures of too few answers."""
    return {"note": "too few rows"} if rows < LEAST_RESIDUALS else {}


def summary(held: Residuals, inside: NDArray[np.bool_]) -> dict[str, float | int | str]:
    """Return MAPE, median APE and coverage of the 80 % interval, in percent, and the number of answers."""
    return {
        "mape": round(100.0 * float(held.error.mean()), 3),
        "median_ape": round(100.0 * float(np.median(held.error)), 3),
        "coverage_80": round(100.0 * float(inside.mean()), 1),
        "n": len(held.log_ratio),
    } | few(len(held.log_ratio))


def card_rows(held: Residuals, gpus: GpuTable, splits: Sequence[str], family: str) -> list[dict[str, Any]]:
    """Return the accuracy card: a row per split and GPU, and a row per split over all GPUs."""
    inside = covered(held, COVERAGE)
    rows = []
    for code, split in enumerate(splits):
        for gpu in [None, *np.unique(held.gpu)]:
            mine = (held.split == code) & (True if gpu is None else held.gpu == gpu)
            if mine.any():
                name = "all" if gpu is None else gpus.ids[gpu]
                rows.append({"split": split, "family": family, "gpu": name, **summary(held.take(mine), inside[mine])})
    return rows
