"""Selection of each query's strongest evidence, and the mean of predictions from several measurements."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from app.bands.groups import NO_EVIDENCE, SUPPORT_OF_GROUP
from app.predictors.launches.relations import best_group, relations
from app.tables.arrays import Floats, Ints
from app.tables.measurements import Evidence
from app.tables.ops import OpTable


@dataclass(frozen=True, slots=True)
class Sources:
    """The strongest evidence of n queries, as m pairs of evidence and query.

    pair   int [m], evidence rows of their query's best relation
    query  int [m], their queries
    group  int [n], best relation of each query, code into GROUPS
    """

    pair: Ints
    query: Ints
    group: Ints

    @classmethod
    def strongest(cls, ops: OpTable, i: Ints, j: Ints, evidence: Evidence, *, weakest: int) -> Sources:
        """Return the evidence of each query's best relation; relations weaker than `weakest` are ignored."""
        relation = relations(ops, i, j, evidence)
        group = best_group(relation, evidence.query, len(i))
        group[group > weakest] = NO_EVIDENCE
        pair = np.flatnonzero(relation == group[evidence.query])
        return cls(pair, evidence.query[pair], group)

    def support(self) -> Ints:
        """Return the support of every query, int [n], code into SUPPORTS."""
        support: Ints = SUPPORT_OF_GROUP[self.group]
        return support

    def mean(self, latency_s: Floats) -> Floats:
        """Return the geometric mean of the pairs' times `latency_s` [m] per query, float64 [n].

        Invalid times (NaN, zero, negative) are ignored; a query without a valid one is NaN.
        """
        usable = np.isfinite(latency_s) & (latency_s > 0)
        query, n = self.query[usable], len(self.group)
        with np.errstate(invalid="ignore"):
            total = np.bincount(query, np.log(latency_s[usable]), n) / np.bincount(query, minlength=n)
        mean: Floats = np.exp(total)
        return mean
