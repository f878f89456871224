"""Gaussian-process regression for few rows: a smooth correction that fades away from what was measured.

Kernel: amplitude^2 (1 + r) exp(-r), Matérn 3/2 (Rasmussen and Williams 2006, section 4.2), r the distance over one
length per column. Lengths, amplitude and noise maximise the marginal likelihood, one at a time over a grid.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from app.predictors.compiled import compiled

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Ints = NDArray[np.intp]

# Lengths in the columns' own unit (logarithms of sizes); the last one leaves a column out.
LENGTHS = (0.7, 1.5, 3.0, 6.0, 12.0, 1e3)
_AMPLITUDES = (0.1, 0.3, 1.0)
_NOISES = (0.01, 0.03, 0.1, 0.25)
_ROUNDS = 2


class Smooth(NamedTuple):
    """Sum over p points of weight x (1 + r) exp(-r).

    column  int16 [d], rows of the features that matter
    scale   float32 [d], one over their lengths
    point   float32 [p, d], measured rows, scaled
    weight  float32 [p]
    """

    column: NDArray[np.int16]
    scale: Singles
    point: Singles
    weight: Singles

    def sum(self, features: Singles) -> Floats:
        """The correction of rows with `features` float32 [columns, n], float64 [n]."""
        total = np.zeros(features.shape[1])
        parts = (self.column, self.scale, self.point, self.weight)
        add_smooth(np.ascontiguousarray(features), parts, 1.0, total)
        return total

    def state(self) -> dict[str, Any]:
        """As arrays."""
        return self._asdict()

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """The inverse of `state`."""
        return cls(*(state[name] for name in cls._fields))


NOTHING = Smooth(np.empty(0, np.int16), np.empty(0, np.float32), np.empty((0, 0), np.float32), np.empty(0, np.float32))


def smoothed(features: Singles, target: Floats, columns: Ints) -> tuple[Smooth, float]:
    """The process through `target` [n] at these columns of `features` float32 [all, n], and its leave-one-out error."""
    from scipy.linalg import cho_factor, cho_solve  # noqa: PLC0415  (serving never fits)

    points = features[columns].T.astype(np.float64)
    varied = np.ptp(points, axis=0) > 1e-6
    columns, points = columns[varied], points[:, varied]
    gaps = np.abs(points[:, None, :] - points[None, :, :])
    lengths, amplitude, noise = _best(gaps, target)
    scale = 1.0 / lengths
    kernel = amplitude**2 * _matern(gaps, scale)
    kernel[np.diag_indices_from(kernel)] += noise**2
    inverse = cho_solve(cho_factor(kernel, lower=True), np.eye(len(target)))
    weight = inverse @ target
    error = float(np.abs(weight / np.diag(inverse)).mean())  # Rasmussen and Williams 2006, equation 5.12
    used = scale > 1.0 / LENGTHS[-1]
    smooth = Smooth(
        columns[used].astype(np.int16),
        scale[used].astype(np.float32),
        np.ascontiguousarray((points[:, used] * scale[used]).astype(np.float32)),
        (amplitude**2 * weight).astype(np.float32),
    )
    return smooth, error


def _matern(gaps: Floats, scale: Floats) -> Floats:
    distance = np.sqrt(((gaps * scale) ** 2).sum(axis=2))
    kernel: Floats = (1.0 + distance) * np.exp(-distance)
    return kernel


def _best(gaps: Floats, target: Floats) -> tuple[Floats, float, float]:
    """Lengths, amplitude and noise, by coordinate ascent on the marginal likelihood."""
    columns = gaps.shape[2]
    point = [LENGTHS[2]] * columns + [_AMPLITUDES[1], _NOISES[1]]
    grids = [LENGTHS] * columns + [_AMPLITUDES, _NOISES]
    best = _loss(gaps, target, point)
    for _ in range(_ROUNDS):
        for k, grid in enumerate(grids):
            for value in grid:
                trial = [*point[:k], value, *point[k + 1 :]]
                if trial != point and (loss := _loss(gaps, target, trial)) < best:
                    best, point = loss, trial
    return np.array(point[:columns]), point[-2], point[-1]


def _loss(gaps: Floats, target: Floats, point: list[float]) -> float:
    """Minus the log marginal likelihood (Rasmussen and Williams 2006, equation 2.30), without its constant."""
    from scipy.linalg import LinAlgError, cho_factor, cho_solve  # noqa: PLC0415  (serving never fits)

    kernel = point[-2] ** 2 * _matern(gaps, 1.0 / np.array(point[:-2]))
    kernel[np.diag_indices_from(kernel)] += point[-1] ** 2
    try:
        factor = cho_factor(kernel, lower=True)
    except LinAlgError:
        return np.inf
    return float(0.5 * target @ cho_solve(factor, target) + np.log(np.diag(factor[0])).sum())


@compiled
def add_smooth(
    features: Singles,
    smooth: tuple[NDArray[np.int16], Singles, Singles, Singles],
    share: float,
    total: Floats,
) -> None:
    """Add `share` times the correction to total [m], for features [columns, m]."""
    column, scale, point, weight = smooth
    for k in range(len(total)):
        summed = 0.0
        for p in range(len(weight)):
            distance = 0.0
            for d in range(len(column)):
                gap = features[column[d], k] * scale[d] - point[p, d]
                distance += gap * gap
            distance = np.sqrt(distance)
            summed += weight[p] * (1.0 + distance) * np.exp(-distance)
        total[k] += share * summed
