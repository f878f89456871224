"""Half-widths of residual groups: priors of those without held-out residuals, and what a network adds to its rows'.

Rows of one GPU err together (its clock, its card, its software), and a lowering leaves operators out. Residuals of rows
show neither; only those of held-out GPUs show the first.
"""

from __future__ import annotations

import numpy as np

from app.bands.band import width_at
from app.bands.groups import OPERATOR_GROUPS, SITUATIONS, situations_of
from app.coefficients import Coefficients
from app.ops import OPS
from app.tables.arrays import Floats, Ints
from app.tables.ops import DTYPES

_BANDS = Coefficients("bands")
_SHARE, _NETWORK = _BANDS.by_name("operator_share"), _BANDS.by_name("network")
_WIDTH_OF_GROUP = {op.interval_group: op.prior.width for op in OPS[1:]}
# Half-widths in log space at COVERAGE of every group without a single held-out residual, float64 [groups].
PRIOR_HALF_WIDTH = np.concatenate(
    [
        _BANDS.numbers("launch_evidence"),
        np.multiply.outer(
            np.repeat([_WIDTH_OF_GROUP[line] for line in OPERATOR_GROUPS], len(DTYPES)),
            [_SHARE[situation] for situation in SITUATIONS],
        ).ravel(),
    ]
)
_NETWORK_OF_SITUATION = np.array([_NETWORK[situation] for situation in SITUATIONS])


def prior_offsets(coverage: float) -> Floats:
    """Return the prior offsets in log space at `coverage`, low and high, float64 [2, groups]."""
    scale = width_at(coverage)
    return np.stack([-scale * PRIOR_HALF_WIDTH, scale * PRIOR_HALF_WIDTH])


def network_widths(group: Ints) -> Floats:
    """Return the half-widths in log space at COVERAGE that rows of these groups share in a network, shaped as they."""
    widths: Floats = _NETWORK_OF_SITUATION[situations_of(group)]
    return widths
