"""Collective interpolation: message sizes that one collective lacks, from the other collectives of the same GPU.

Libraries change protocol and algorithm at message sizes that nearly agree between collectives, and agree between dtypes
(NCCL: LL, LL128 and Simple), so a step that one series misses is measured in another. One multi-task Gaussian process
over all collectives of a GPU (Bonilla, Chai and Williams 2007) predicts the missing sizes inside the range of each
series; training takes these as measured. log(measured / physics) is

  a level, the same for all rows
  + a smooth part, half per series (operator, library and devices), half shared by similar series
  + steps, shared by similar series on equally many devices
  + the difference of a dtype from the others of its series
  + noise.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from app.coefficients import Coefficients
from app.ops import OPS
from app.predictors.auto.operators.models.gaussian_process import matern
from app.predictors.auto.operators.models.training_samples import samples
from app.predictors.physics.physics_fit import NEUTRAL
from app.predictors.priors import IS_COLLECTIVE
from app.tables.arrays import Floats, Ints
from app.tables.gpus import GpuTable
from app.tables.measurements import Measurements, stacked
from app.tables.ops import OpTable, concatenate

_FITTED = Coefficients("learning")

# Standard deviations in log space, and lengths in the logarithm of bytes.
LEVEL, SMOOTH, STEPS, DTYPE, NOISE = _FITTED.each(
    "collective_level", "collective_smooth", "collective_steps", "collective_dtype", "collective_noise"
)
FAR, NEAR = _FITTED.each("collective_far", "collective_near")
# Correlation of two operators: both rings, both rings of one round, one no ring; and of two libraries.
RINGS, ONE_PASS, NO_RING, LIBRARIES = _FITTED.each(
    "correlation_rings", "correlation_one_pass", "correlation_no_ring", "correlation_libraries"
)
# Most rows of a GPU, measured and interpolated; with more, its series hold sizes enough and are not interpolated.
MOST = 1000

# Measured rows by operator and dtype.
Cells = Mapping[tuple[str, str], Measurements]


def with_interpolated_sizes(rows: Cells, gpus: GpuTable) -> Cells:
    """The measured rows of every cell, those of collectives followed by the interpolated ones."""
    keys = [key for key, cell in rows.items() if len(cell) and IS_COLLECTIVE[cell.ops.kind[0]]]
    if not keys:
        return rows
    cells = [rows[key] for key in keys]
    parts_of = [[cell] for cell in cells]
    every, owner = stacked(cells), np.repeat(np.arange(len(cells)), [len(cell) for cell in cells])
    for gpu in np.unique(every.gpu):
        here = np.flatnonzero(every.gpu == gpu)
        first, size = _missing(every.ops.take(here))
        if len(first) and len(here) + len(first) <= MOST:
            new = _interpolated(every.take(here), first, size, gpus)
            for cell in np.unique(owner[here[first]]):
                parts_of[cell].append(new.take(np.flatnonzero(owner[here[first]] == cell)))
    return {**rows, **{key: stacked(parts) for key, parts in zip(keys, parts_of, strict=True)}}


def _missing(table: OpTable) -> tuple[Ints, Floats]:
    """Sizes missing inside the range of each series in a dtype: int [m], a row of the series; float64 [m], bytes."""
    bytes_of, devices = table.column("message_bytes"), table.column("devices")
    series = _label(table, table.dtype, table.kind, _library(table), devices)
    first, size = [], []
    for label in np.unique(series):
        own = np.flatnonzero(series == label)
        between = (bytes_of > bytes_of[own].min()) & (bytes_of < bytes_of[own].max())
        missing = np.setdiff1d(bytes_of[between], bytes_of[own])
        first.append(np.full(len(missing), own[0]))
        size.append(missing)
    return np.concatenate(first), np.concatenate(size)


def _interpolated(rows: Measurements, first: Ints, size: Floats, gpus: GpuTable) -> Measurements:
    """Rows like `first` [m] with `size` [m] bytes, and their expected times given the `rows` of one GPU."""
    ops = rows.ops.take(first).with_columns({"message_bytes": size})
    new = Measurements(ops, rows.gpu[first], np.ones(len(first)))
    residual, physics = samples(rows, gpus).residual(NEUTRAL), -samples(new, gpus).residual(NEUTRAL)
    covariance, n = _covariance(concatenate([rows.ops, new.ops])), len(rows)
    weight = np.linalg.solve(covariance[:n, :n] + NOISE**2 * np.eye(n), residual - residual.mean())
    expected = residual.mean() + covariance[n:, :n] @ weight
    return Measurements(new.ops, new.gpu, np.exp(physics + expected))


def _covariance(table: OpTable) -> Floats:
    """Prior covariance of log(measured / physics) of rows of one GPU, float64 [n, n]."""
    library, devices, place = _library(table), table.column("devices"), np.log(table.column("message_bytes"))[:, None]
    series = _same(_label(table, table.kind, library, devices))
    alike = _operators(table.kind) * np.where(_same(library), 1.0, LIBRARIES)
    far, near = matern(place, place, FAR), matern(place, place, NEAR)
    smooth = SMOOTH**2 * 0.5 * (alike + series) + DTYPE**2 * series * _same(table.dtype)
    covariance: Floats = LEVEL**2 + smooth * far + STEPS**2 * alike * _same(devices) * near
    return covariance


def _operators(kind: Ints) -> Floats:
    """Correlation of the operators of rows, float64 [n, n]."""
    passes = np.array([0 if (pattern := OPS[code].pattern) is None else pattern.rounds for code in kind])
    ring = (passes[:, None] > 0) & (passes > 0)
    alike = np.where(ring, np.where(_same(passes) & (passes == 1), ONE_PASS, RINGS), NO_RING)
    correlation: Floats = np.where(_same(kind), 1.0, alike)
    return correlation


def _library(table: OpTable) -> Ints:
    """A number per distinct library: all dimensions but message size and devices, int [n]."""
    rest = [table.column(name) for name in table.fields if name not in {"message_bytes", "devices"}]
    return _label(table, *rest)


def _label(table: OpTable, *columns: Floats | Ints) -> Ints:
    """A number for each distinct combination of columns, int [n]."""
    rows = np.nan_to_num(np.array(columns, dtype=np.float64).reshape(len(columns), len(table)), nan=-1.0)
    return np.unique(rows, axis=1, return_inverse=True)[1].ravel()


def _same(values: Floats | Ints) -> NDArray[np.bool_]:
    equal: NDArray[np.bool_] = values[:, None] == values
    return equal
