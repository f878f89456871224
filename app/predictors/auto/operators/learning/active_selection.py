"""Which rows to measure so that a workload's are known best: greedy choice by the variance that each leaves.

The variance that rows leave does not depend on their times (Rasmussen and Williams 2006, equation 2.24), so that all of
them can be chosen before any is measured. Taking the one that lowers the weighted variance most, again and again, is
within a factor 1 - 1/e of the best set where gains diminish (Krause, Singh and Guestrin 2008, section 4).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from app.tables.arrays import Floats, Ints


@dataclass(slots=True)
class Prospect:
    """Rows of one operator and dtype on a GPU whose errors go together, and what is left unknown of them.

    covariance  float64 [n, n] of the errors in log space, what was measured taken into account
    noise       standard deviation of a measurement beside them
    asked       int [w], rows of the workload; `share` float64 [w] says how much each counts
    candidates  int [c], rows that could be measured
    """

    covariance: Floats
    noise: float
    asked: Ints
    share: Floats
    candidates: Ints

    @property
    def spread(self) -> Floats:
        """Standard deviation of each row asked for, float64 [w]."""
        return np.sqrt(np.maximum(np.diag(self.covariance)[self.asked], 0.0))

    def best(self) -> tuple[float, int]:
        """The weighted variance that the best candidate takes away, and its row; 0 and -1 where none is left."""
        if not len(self.candidates):
            return 0.0, -1
        seen = self.covariance[np.ix_(self.asked, self.candidates)]
        gain = self.share @ seen**2 / (np.diag(self.covariance)[self.candidates] + self.noise**2)
        best = int(np.argmax(gain))
        return float(gain[best]), int(self.candidates[best])

    def measure(self, row: int) -> None:
        """Take into account that a row is measured."""
        column = self.covariance[row].copy()
        self.covariance -= np.outer(column, column / (column[row] + self.noise**2))
        self.candidates = self.candidates[self.candidates != row]


def chosen(prospects: Sequence[Prospect], count: int) -> Iterator[tuple[int, int]]:
    """The next rows to measure, best first, `count` at most: which of `prospects`, and its row.

    When one is asked for, those before it are taken as measured.
    """
    offers = [one.best() for one in prospects]
    for _ in range(count):
        which = max(range(len(offers)), key=lambda k: offers[k][0], default=-1)
        if which < 0 or offers[which][1] < 0:
            return
        row = offers[which][1]
        prospects[which].measure(row)
        yield which, row
        offers[which] = prospects[which].best()
