"""Folds of the held-out validation of kernel predictors: training rows, queries and their evidence.

Three splits, each as folds of (training rows, queries with their evidence):
gpu_held_out     one GPU's rows are not trained on; they are predicted from one row on another GPU at a time
size_held_out    every kernel's largest size on each GPU is predicted from its smaller sizes there
kernel_held_out  one kernel's rows are not trained on; they are predicted without evidence, and from another
                 kernel's row on the same GPU
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from app.ops.kernel import FIELD_INDEX
from app.tables.arrays import Ints
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
