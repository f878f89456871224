"""One effect of a network on predicted times, and what it is computed of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from app.bands.band import Band
from app.networks.run import Run
from app.tables.arrays import Bools, Floats, Ints
from app.tables.gpus import GpuTable
from app.tables.ops import OpTable
from app.tables.workload import Workload

Stage: TypeAlias = Literal["row", "launch", "host", "step"]


class Subject(NamedTuple):
    """What a correction is computed of, for g GPUs, or with c configurations of a step for g c GPUs, repeated.

    run       batch, sequence and image size are numbers, or one per configuration
    gpus      g rows
    ops       u distinct rows; of a launch and of a step the n rows of the workload
    answer_s  float64 [g, u], predicted seconds of distinct rows, and `bound` int [g, u] what they are bound by
    workload  of a launch and of a step
    """

    run: Run
    gpus: GpuTable
    ops: OpTable
    answer_s: Floats | None = None
    bound: Ints | None = None
    workload: Workload | None = None


Where: TypeAlias = Callable[[Subject], Bools]
Figure: TypeAlias = Callable[[Subject], Floats]


class Correction(NamedTuple):
    """One effect: a `factor` on times, seconds `added_s` to them, or of rows the seconds that they take at `least_s`.

    Shapes broadcast to [g, u] of rows, [n, g] of launches and the host, and [g] of a step.

    where  bool, where it applies
    band   of the added seconds
    """

    name: str
    stage: Stage
    where: Where
    factor: Figure | None = None
    added_s: Figure | None = None
    least_s: Figure | None = None
    band: Band[float] = Band(0.0, 0.0)

    def figure(self, subject: Subject) -> Floats | None:
        """Return the factors, or the seconds that are added; None where it applies nowhere."""
        on = self.where(subject)
        if not on.any():
            return None
        if self.added_s is not None:
            return np.where(on, self.added_s(subject), 0.0)
        return np.where(on, self._factor(subject), 1.0)

    def _factor(self, subject: Subject) -> Floats:
        if self.factor is not None:
            return self.factor(subject)
        assert self.least_s is not None
        least_s = np.nan_to_num(self.least_s(subject))
        return np.maximum(least_s / np.maximum(answer_s(subject), np.finfo(np.float64).tiny), 1.0)


def answer_s(subject: Subject) -> Floats:
    """Return the predicted seconds of distinct rows, [g, u]."""
    assert subject.answer_s is not None
    return subject.answer_s


NOWHERE = np.zeros(1, dtype=np.bool_)


def of_architectures(gpus: GpuTable, prefixes: tuple[str, ...]) -> Bools:
    """Return which GPUs' architectures begin so, bool [g]."""
    return np.array([name.startswith(prefixes) for name in gpus.architectures or ("",) * len(gpus)])
