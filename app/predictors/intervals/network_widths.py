"""Additional interval widths of a whole network over the sum of its rows, by situation.

Rows of one GPU err together (its clock, its card, its software), and a lowering leaves operators out. Residuals of rows
show neither; only those of held-out GPUs show the first. Half-widths in log space that hold 80 % of NeuSight's measured
models together with the rows' own intervals: as shipped, on the GPUs of the training rows, and with each of these left
out in turn (docs/explanation/notebook.md). Set by hand on these runs, so their coverage there is in-sample
(docs/reference/results.md).
"""

from __future__ import annotations

import numpy as np

from app.predictors.intervals.groups import SITUATIONS, situations_of
from app.predictors.intervals.prior import width_at
from app.tables.arrays import Floats, Ints

_WIDTHS = {
    "measured": 0.08,
    "seen": 0.05,
    "seen_outside": 0.05,
    "calibrated": 0.05,
    "sibling": 0.05,
    "unseen": 0.04,
    "unseen_outside": 0.04,
    "untrained": 0.20,
}
_OF_SITUATION = np.array([_WIDTHS[situation] for situation in SITUATIONS])


def network_widths(group: Ints, coverage: float) -> Floats:
    """Half-widths in log space at `coverage`, float64 in the shape of `group` (app.predictors.intervals.groups)."""
    widths: Floats = width_at(coverage) * _OF_SITUATION[situations_of(group)]
    return widths
