"""Sizes of a collective that were not measured, by the other collectives of the same GPU.

Libraries change protocol and algorithm at sizes that collectives have nearly in common, and all dtypes have (NCCL: LL,
LL128 and Simple): where a step is missing from one, another may show it. One Gaussian process over all collectives of a
GPU, whose operators go together (Bonilla, Chai and Williams 2007), tells every size between those of a collective that
only others have; what is learned then takes these as if measured. log(measured / physics) is

  a level, the same for all rows
  + a smooth part, half of each series (operator, library and devices), half common to what is alike
  + steps, common to what is alike on equally many devices
  + what a dtype does unlike the others of its series
  + noise.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from app.ops import OPS
from app.predictors.auto.operators.models.gaussian_process import matern
from app.predictors.auto.operators.models.training_samples import samples
from app.predictors.auto.operators.physics.physics_fit import NEUTRAL
from app.tables.arrays import Floats, Ints
from app.tables.gpus import GpuTable
from app.tables.measurements import Measurements
from app.tables.ops import OpTable, concatenate

# Standard deviations in log space, and lengths in the logarithm of bytes; chosen with configurations held out.
LEVEL, SMOOTH, STEPS, DTYPE, NOISE = 3.0, 0.5, 0.1, 0.05, 0.04
FAR, NEAR = 8.0, 0.8
# How alike two operators are: rings among one another, rings that pass all once, what is no ring; and two libraries.
RINGS, ONE_PASS, NO_RING, LIBRARIES = 0.5, 0.8, 0.2, 0.1
# Rows of a GPU, told and asked for, beyond which its collectives are learned one by one: they hold sizes enough.
MOST = 1000


def with_sisters(cells: Sequence[Measurements], gpus: GpuTable) -> list[Measurements]:
    """Rows of collectives, an operator in a dtype each, and after them the sizes that only others of their GPU have."""
    found = [[cell] for cell in cells]
    every, owner = joined(cells), np.repeat(np.arange(len(cells)), [len(cell) for cell in cells])
    for gpu in np.unique(every.gpu):
        here = np.flatnonzero(every.gpu == gpu)
        first, size = _missing(every.ops.take(here))
        if len(first) and len(here) + len(first) <= MOST:
            told = _told(every.take(here), first, size, gpus)
            for cell in np.unique(owner[here[first]]):
                found[cell].append(told.take(np.flatnonzero(owner[here[first]] == cell)))
    return [joined(parts) for parts in found]


def joined(parts: Sequence[Measurements]) -> Measurements:
    """Measured rows one after another."""
    return Measurements(
        concatenate([part.ops for part in parts]),
        np.concatenate([part.gpu for part in parts]),
        np.concatenate([part.latency_s for part in parts]),
    )


def _missing(table: OpTable) -> tuple[Ints, Floats]:
    """Sizes that a series in a dtype lacks between its own, as a row of it [m] and the bytes [m]."""
    series, bytes_of = _label(table, table.dtype, table.kind, _library(table), table.column("devices")), _bytes(table)
    first, size = [], []
    for one in np.unique(series):
        own = np.flatnonzero(series == one)
        between = (bytes_of > bytes_of[own].min()) & (bytes_of < bytes_of[own].max())
        lacking = np.setdiff1d(bytes_of[between], bytes_of[own])
        first.append(np.full(len(lacking), own[0]))
        size.append(lacking)
    return np.concatenate(first), np.concatenate(size)


def _told(rows: Measurements, first: Ints, size: Floats, gpus: GpuTable) -> Measurements:
    """Rows like `first` with `size` bytes, taking as long as all `rows`, of one GPU, make likely."""
    dims = rows.ops.take(first).dims.copy()
    dims[rows.ops.fields["message_bytes"]] = size
    kind, dtype, label = rows.ops.kind[first], rows.ops.dtype[first], rows.ops.label[first]
    asked = Measurements(OpTable(kind, dtype, label, rows.ops.fields, dims), rows.gpu[first], np.ones(len(first)))
    left, physics = samples(rows, gpus).residual(NEUTRAL), -samples(asked, gpus).residual(NEUTRAL)
    common = _covariance(concatenate([rows.ops, asked.ops]))
    known, n = common[: len(rows), : len(rows)], len(rows)
    weight = np.linalg.solve(known + NOISE**2 * np.eye(n), left - left.mean())
    likely = left.mean() + common[n:, :n] @ weight
    return Measurements(asked.ops, asked.gpu, np.exp(physics + likely))


def _covariance(table: OpTable) -> Floats:
    """Of rows of one GPU, float64 [n, n]."""
    library, devices, place = _library(table), table.column("devices"), np.log(_bytes(table))[:, None]
    series = _same(_label(table, table.kind, library, devices))
    alike = _operators(table.kind) * np.where(_same(library), 1.0, LIBRARIES)
    far, near = matern(place, place, FAR), matern(place, place, NEAR)
    smooth = SMOOTH**2 * 0.5 * (alike + series) + DTYPE**2 * series * _same(table.dtype)
    found: Floats = LEVEL**2 + smooth * far + STEPS**2 * alike * _same(devices) * near
    return found


def _operators(kind: Ints) -> Floats:
    """How alike the operators of rows are, float64 [n, n]."""
    passes = np.array([0 if (pattern := OPS[code].pattern) is None else pattern.rounds for code in kind])
    ring = (passes[:, None] > 0) & (passes > 0)
    alike = np.where(ring, np.where(_same(passes) & (passes == 1), ONE_PASS, RINGS), NO_RING)
    found: Floats = np.where(_same(kind), 1.0, alike)
    return found


def _bytes(table: OpTable) -> Floats:
    return table.column("message_bytes")


def _library(table: OpTable) -> Ints:
    """A number for what launches a row: all of its dimensions but size and devices."""
    rest = [table.column(name) for name in table.fields if name not in {"message_bytes", "devices"}]
    return _label(table, *rest)


def _label(table: OpTable, *columns: Floats | Ints) -> Ints:
    """A number for each distinct combination of columns, int [n]."""
    rows = np.nan_to_num(np.array(columns, dtype=np.float64).reshape(len(columns), len(table)), nan=-1.0)
    return np.unique(rows, axis=1, return_inverse=True)[1].ravel()


def _same(values: Floats | Ints) -> NDArray[np.bool_]:
    equal: NDArray[np.bool_] = values[:, None] == values
    return equal
