"""Active selection: the rows to measure so that the errors of a workload become smallest.

The posterior variance does not depend on the measured times (Rasmussen and Williams 2006, equation 2.24), so all rows
can be chosen before any is measured. Greedy choice of the row that lowers the weighted variance most is within a factor
1 - 1/e of the best set where gains diminish (Krause, Singh and Guestrin 2008, section 4).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from app.tables.arrays import Floats, Ints


@dataclass(slots=True)
class Prospect:
    """Rows of one operator and dtype on a GPU, and the posterior covariance of their errors.

    covariance  float64 [n, n] of the errors in log space, given what was measured
    noise       standard deviation of a measurement in log space
    queries     int [w], rows of the workload
    share       float64 [w], weight of each
    candidates  int [c], rows that can be measured
    """

    covariance: Floats
    noise: float
    queries: Ints
    share: Floats
    candidates: Ints

    @property
    def spread(self) -> Floats:
        """Standard deviation of each row of the workload in log space, float64 [w]."""
        return np.sqrt(np.maximum(np.diag(self.covariance)[self.queries], 0.0))

    def best(self) -> tuple[float, int]:
        """The reduction of the weighted variance by the best candidate, and its row; 0 and -1 if there is none."""
        if not len(self.candidates):
            return 0.0, -1
        seen = self.covariance[np.ix_(self.queries, self.candidates)]
        gain = self.share @ seen**2 / (np.diag(self.covariance)[self.candidates] + self.noise**2)
        best = int(np.argmax(gain))
        return float(gain[best]), int(self.candidates[best])

    def measure(self, row: int) -> None:
        """Condition the covariance on a measurement of `row`, and drop it from the candidates."""
        column = self.covariance[row].copy()
        self.covariance -= np.outer(column, column / (column[row] + self.noise**2))
        self.candidates = self.candidates[self.candidates != row]


def chosen(prospects: Sequence[Prospect], count: int) -> Iterator[tuple[int, int]]:
    """The next rows to measure, best first, `count` at most: index into `prospects`, and its row.

    Each choice takes the earlier ones as measured.
    """
    offers = [prospect.best() for prospect in prospects]
    for _ in range(count):
        which = max(range(len(offers)), key=lambda k: offers[k][0], default=-1)
        if which < 0 or offers[which][1] < 0:
            return
        row = offers[which][1]
        prospects[which].measure(row)
        yield which, row
        offers[which] = prospects[which].best()
