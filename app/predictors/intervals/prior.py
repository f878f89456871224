"""Prior widths of intervals, for groups without held-out residuals, and widths at other coverages."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from app.ops import OPS
from app.predictors.intervals.groups import OPERATOR_GROUPS, SITUATIONS
from app.tables.arrays import Floats
from app.tables.ops import DTYPES

# Of launches, by what the best evidence is: measured repeats differ by a few percent; cross-size and cross-GPU transfer
# of the published analytical models by 10 to 50 %; an unmeasured kernel by a factor of three (roofline studies see 10
# to 90 % of the roof).
_OF_EVIDENCE = (0.05, 0.20, 0.35, 0.45, 0.70, 1.10)
# Share of the family's prior width, by situation.
_SHARE = {
    "measured": 0.1,
    "seen": 0.25,
    "seen_outside": 0.5,
    "calibrated": 0.5,
    "sibling": 0.5,
    "unseen": 0.8,
    "unseen_outside": 1.0,
    "untrained": 1.0,
}
_WIDTH_OF_GROUP = {op.interval_group: op.prior.width for op in OPS[1:]}
# Half-widths in log space at PRIOR_COVERAGE of every group without a single held-out residual, float64 [groups].
PRIOR_HALF_WIDTH = np.concatenate(
    [
        _OF_EVIDENCE,
        np.multiply.outer(
            np.repeat([_WIDTH_OF_GROUP[line] for line in OPERATOR_GROUPS], len(DTYPES)),
            [_SHARE[situation] for situation in SITUATIONS],
        ).ravel(),
    ]
)
PRIOR_COVERAGE = 0.8
# A coverage next to 1 rounds to it, which has no quantile.
_LEAST_TAIL = 2.0**-53


def normal_quantile(probability: float) -> float:
    """The standard normal quantile; probabilities next to 0 and 1 are clipped to those with a finite one."""
    return NormalDist().inv_cdf(min(max(probability, _LEAST_TAIL), 1.0 - _LEAST_TAIL))


def width_at(coverage: float) -> float:
    """Width of a normal error's interval at `coverage`, relative to that at PRIOR_COVERAGE."""
    return normal_quantile(0.5 + coverage / 2.0) / normal_quantile(0.5 + PRIOR_COVERAGE / 2.0)


def prior_offsets(coverage: float) -> Floats:
    """Prior offsets in log space at `coverage`, low and high, float64 [2, groups]."""
    scale = width_at(coverage)
    return np.stack([-scale * PRIOR_HALF_WIDTH, scale * PRIOR_HALF_WIDTH])
