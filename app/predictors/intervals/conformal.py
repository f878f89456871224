"""Intervals: conformal quantiles of log residuals, per group of evidence.

A residual is log(measured / predicted) of a row whose GPU, size or kernel was held out of training, so a
group's quantiles promise what its evidence can give. Groups without residuals use documented prior widths.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from app.ops import OPS
from app.ops.kernel import FIELD_INDEX
from app.predictors.priors import PRIORS
from app.tables.measurements import Evidence
from app.tables.ops import DTYPES, OpTable
from app.tables.predictions import EXTRAPOLATED, INTERPOLATED, MEASURED

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

# What the best evidence of a query is, from strongest to weakest.
GROUPS = (
    "exact",  # this launch, measured on this GPU
    "same_gpu",  # this kernel at another size, on this GPU
    "other_gpu",  # this launch, on another GPU
    "other_gpu_and_size",  # this kernel at another size, on another GPU
    "related",  # another kernel
    "none",
)
EXACT, SAME_GPU, OTHER_GPU, OTHER_GPU_AND_SIZE, RELATED, NO_EVIDENCE = range(6)
# How well each group supports an answer: the launch itself on the target; one step away (another size, or another
# GPU); further.
SUPPORT_OF_GROUP = np.array([MEASURED, INTERPOLATED, INTERPOLATED, EXTRAPOLATED, EXTRAPOLATED, EXTRAPOLATED])

# What stands behind an answer for a deep-learning operator, from strongest to weakest, and how much of the family's
# prior width it leaves. "Outside" is beyond the range of shapes that were learned from.
SITUATIONS = {
    "measured": 0.1,  # this operator, on this GPU and stack
    "seen": 0.25,  # the GPU was learned from
    "seen_outside": 0.5,
    "calibrated": 0.5,  # a few rows of the GPU correct what others taught
    "sibling": 0.5,  # a GPU of the same architecture was learned from
    "unseen": 0.8,  # GPUs of other architectures were learned from
    "unseen_outside": 1.0,
    "untrained": 1.0,
}
S_MEASURED, S_SEEN, S_SEEN_OUTSIDE, S_CALIBRATED, S_SIBLING, S_UNSEEN, S_UNSEEN_OUTSIDE, S_UNTRAINED = range(8)
# Answers whose residuals are of GPUs that were held out, though a few rows of them may have been told.
OTHER_GPUS = (S_CALIBRATED, S_SIBLING, S_UNSEEN, S_UNSEEN_OUTSIDE)
SUPPORT_OF_SITUATION = np.array([MEASURED] + [INTERPOLATED] + [EXTRAPOLATED] + [INTERPOLATED] * 2 + [EXTRAPOLATED] * 3)

# The lines of the breakdown (`Op.group`), each with a group per dtype and situation, and decoding apart from other
# attention, with which it has little in common. Stored intervals count them: a new one goes to the end.
OPERATOR_GROUPS = (
    "attention",
    "bmm",
    "collective",
    "conv2d",
    "elementwise",
    "embedding",
    "linear",
    "memory",
    "moe",
    "norm",
    "pool",
    "recurrent",
    "softmax",
    "network",
    "attention_decode",
)
_LINES = [op.name if op.name in OPERATOR_GROUPS else op.group for op in OPS[1:]]
_GROUP_OF_KIND = np.array([0] + [OPERATOR_GROUPS.index(line) for line in _LINES])
_FIRST, _DTYPES, _SITUATIONS = len(GROUPS), len(DTYPES), len(SITUATIONS)
_WIDTH_OF_LINE = {line: PRIORS[op.group].width for line, op in zip(_LINES, OPS[1:], strict=True)}


def operator_codes(kind: Ints, dtype: Ints, situation: Ints | int) -> Ints:
    """Residual groups of operators of these kinds, dtypes and situations (codes into SITUATIONS), int [n].

    Compiled, of single ones, where it is asked row by row.
    """
    codes: Ints = _FIRST + (_GROUP_OF_KIND[kind] * _DTYPES + dtype) * _SITUATIONS + situation
    return codes


def of_other_gpus(group: int) -> bool:
    """Whether answers of this residual group are for GPUs that were not learned from, while others were."""
    return group >= _FIRST and (group - _FIRST) % _SITUATIONS in OTHER_GPUS


# Prior half-widths in log space at 80 % coverage, for a group without a single held-out residual. Measured
# repeats differ by a few percent; cross-size and cross-GPU transfer of the published analytical models by
# 10 to 50 %; an unmeasured kernel by a factor of three (roofline studies see 10 to 90 % of the roof).
PRIOR_HALF_WIDTH = np.concatenate(
    [
        [0.05, 0.20, 0.35, 0.45, 0.70, 1.10],
        np.multiply.outer(
            np.repeat([_WIDTH_OF_LINE[line] for line in OPERATOR_GROUPS], len(DTYPES)), list(SITUATIONS.values())
        ).ravel(),
    ]
)
PRIOR_COVERAGE = 0.8
# A coverage next to 1 rounds to it, which has no quantile.
_LEAST_TAIL = 2.0**-53

# Fewer held-out residuals than this cannot show a tail of ten percent.
LEAST_RESIDUALS = 10
# GPUs that are too few to show whether answers for others are rather too high or too low.
FEW_GPUS = 3


def normal_quantile(probability: float) -> float:
    """The standard normal's; of probabilities next to 0 and 1, which have none, that of the closest that has."""
    return NormalDist().inv_cdf(min(max(probability, _LEAST_TAIL), 1.0 - _LEAST_TAIL))


def width_at(coverage: float) -> float:
    """How wide an interval of a normal error is, relative to that of PRIOR_COVERAGE."""
    return normal_quantile(0.5 + coverage / 2.0) / normal_quantile(0.5 + PRIOR_COVERAGE / 2.0)


def _prior_offsets(coverage: float) -> Floats:
    """Prior half-widths at another coverage, by the normal quantile, float64 [2, groups]."""
    scale = width_at(coverage)
    return np.stack([-scale * PRIOR_HALF_WIDTH, scale * PRIOR_HALF_WIDTH])


_LAUNCH = FIELD_INDEX["launch"]
# Relation by what a row shares with its query: 4 for the kernel, 2 for the launch, 1 for the GPU.
RELATION = np.array([RELATED] * 4 + [OTHER_GPU_AND_SIZE, SAME_GPU, OTHER_GPU, EXACT])


def relations(ops: OpTable, i: Ints, j: Ints, evidence: Evidence) -> Ints:
    """How each evidence row relates to its query: code into GROUPS, int [m].

    `ops`, `i`, `j` are the query's.
    """
    rows, query = evidence.rows, i[evidence.query]
    kernel = rows.ops.label == ops.label[query]
    launch = rows.ops.dims[_LAUNCH] == ops.dims[_LAUNCH, query]
    relation: Ints = RELATION[4 * kernel + 2 * launch + (rows.gpu == j[evidence.query])]
    return relation


def best_group(relation: Ints, query: Ints, n: int) -> Ints:
    """The strongest relation of every query, int [n]; NO_EVIDENCE where a query has no row."""
    if len(query) == n == 1:
        return relation
    group = np.full(n, NO_EVIDENCE)
    np.minimum.at(group, query, relation)
    return group


@dataclass(frozen=True, slots=True)
class Intervals:
    """Residual quantiles per group.

    residuals  group -> sorted float64 array of log(measured / predicted); a group without one has its prior width
    units      how many of them are independent, per group
    gpus       of how many GPUs they are, per group of answers for a GPU that was held out as a whole
    """

    residuals: Mapping[int, Floats]
    units: Mapping[int, int]
    gpus: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def prior(cls) -> Self:
        """No residuals: documented widths only."""
        return cls({}, {})

    @classmethod
    def from_residuals(cls, residual: Floats, group: Ints, kernel: Ints) -> Self:
        """From held-out log residuals, their groups and their kernels' labels, [m] each.

        Rows of a kernel that was never measured err together, so there a kernel counts once, however many rows it
        has.
        """
        residuals = {int(code): np.sort(residual[group == code]) for code in np.unique(group)}
        units = {
            code: len(np.unique(kernel[group == code])) if code in (RELATED, NO_EVIDENCE) else len(found)
            for code, found in residuals.items()
        }
        return cls(residuals, units)

    def state(self) -> dict[str, Any]:
        """As a plain container of arrays."""
        return {"residuals": dict(self.residuals), "units": dict(self.units), "gpus": dict(self.gpus)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """The inverse of `state`."""
        return cls(dict(state["residuals"]), dict(state["units"]), dict(state["gpus"]))

    def log_offsets(self, coverage: float) -> Floats:
        """Offsets to add to log latency, float64 [2, groups]: low and high at `coverage` in (0, 1).

        Each side is the split-conformal quantile of its tail, the ceil((k + 1) p)-th of k independent residuals
        (Vovk et al. 2005); the middle always lies inside. Rows of a GPU err together: where answers are for another GPU
        than the g of the residuals, each tail that is left out is smaller by 1 / g of it. Of few such GPUs both sides
        are of all residuals, as if they had erred either way: which way they did says nothing of the next. Over
        (k - 1) / (k + 1), which k residuals cannot show, it is their extremes, further out as a normal law's tails are.
        """
        offsets = _prior_offsets(coverage)
        upper = 0.5 + coverage / 2.0
        for code, residual in self.residuals.items():
            units = self.units[code]
            if len(residual) >= LEAST_RESIDUALS:
                level, either = min(np.ceil((units + 1) * upper) / units, 1.0), residual
                if code in self.gpus:
                    level += (1.0 - level) / self.gpus[code]
                    if self.gpus[code] <= FEW_GPUS:
                        either = np.sort(np.concatenate([residual, -residual]))
                m = len(either)
                rank = int(np.ceil(level * m)) - 1
                told = (len(residual) - 1) / (len(residual) + 1)
                beyond = width_at(max(coverage, told)) / width_at(told)
                offsets[:, code] = beyond * min(either[m - 1 - rank], 0.0), beyond * max(either[rank], 0.0)
        return offsets
