"""Residual groups of prediction intervals, and their widths.

A group is the evidence behind an answer, by name and by code. Artefacts hold the names ("linear/bf16/seen"). Codes
index the arrays of one process; they follow from the present lists of operators and dtypes and are never stored.

Widths are priors of groups without held-out residuals. What a whole network is off by beside its rows is the matter of
app.bands.error_model.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from app.bands.band import width_at
from app.coefficients import Coefficients
from app.ops import OPS
from app.tables.arrays import Floats, Ints
from app.tables.ops import DTYPES
from app.tables.predictions import EXTRAPOLATED, INTERPOLATED, MEASURED

# Best evidence of a kernel launch, from strongest to weakest.
GROUPS = (
    "exact",  # this launch, measured on this GPU
    "same_gpu",  # this kernel at another size, on this GPU
    "other_gpu",  # this launch, on another GPU
    "other_gpu_and_size",  # this kernel at another size, on another GPU
    "related",  # another kernel
    "none",
)
EXACT, SAME_GPU, OTHER_GPU, OTHER_GPU_AND_SIZE, RELATED, NO_EVIDENCE = range(6)
# Support of each group: the launch itself on the target; one step away (another size, or another GPU); further.
SUPPORT_OF_GROUP = np.array([MEASURED, INTERPOLATED, INTERPOLATED, EXTRAPOLATED, EXTRAPOLATED, EXTRAPOLATED])

# Evidence of an answer for a deep-learning operator, from strongest to weakest; "outside": of the training range.
SITUATIONS = (
    "measured",  # this operator, on this GPU and stack
    "seen",  # trained on the GPU
    "seen_outside",
    "calibrated",  # trained on other GPUs, corrected by a few rows of this one
    "sibling",  # trained on a GPU of the same architecture
    "unseen",  # trained on GPUs of other architectures
    "unseen_outside",
    "untrained",
)
S_MEASURED, S_SEEN, S_SEEN_OUTSIDE, S_CALIBRATED, S_SIBLING, S_UNSEEN, S_UNSEEN_OUTSIDE, S_UNTRAINED = range(8)
# Situations whose residuals are of held-out GPUs, of which a few rows may have been given.
OTHER_GPUS = (S_CALIBRATED, S_SIBLING, S_UNSEEN, S_UNSEEN_OUTSIDE)
SUPPORT_OF_SITUATION = np.array([MEASURED] + [INTERPOLATED] + [EXTRAPOLATED] + [INTERPOLATED] * 2 + [EXTRAPOLATED] * 3)

_LINES = [op.interval_group for op in OPS[1:]]
# Each has a group per dtype and situation.
OPERATOR_GROUPS = tuple(dict.fromkeys(_LINES))
_GROUP_OF_KIND = np.array([0] + [OPERATOR_GROUPS.index(line) for line in _LINES])
_FIRST, _DTYPES, _SITUATIONS = len(GROUPS), len(DTYPES), len(SITUATIONS)

# Of every code.
NAMES = (
    *GROUPS,
    *(f"{line}/{dtype}/{situation}" for line in OPERATOR_GROUPS for dtype in DTYPES for situation in SITUATIONS),
)
CODES = {name: code for code, name in enumerate(NAMES)}


def operator_codes(kind: Ints, dtype: Ints, situation: Ints | int) -> Ints:
    """Residual groups of operators of these kinds, dtypes and situations (codes into SITUATIONS), int [n].

    Inference compiles it for scalars.
    """
    codes: Ints = _FIRST + (_GROUP_OF_KIND[kind] * _DTYPES + dtype) * _SITUATIONS + situation
    return codes


def groups_of_siblings() -> Iterator[tuple[int, int, list[int]]]:
    """Per operator group and dtype, the codes of `seen` and `sibling`, and those of `sibling` in its other dtypes."""
    for line in OPERATOR_GROUPS:
        siblings = [CODES[f"{line}/{dtype}/sibling"] for dtype in DTYPES]
        for dtype, sibling in zip(DTYPES, siblings, strict=True):
            yield CODES[f"{line}/{dtype}/seen"], sibling, [code for code in siblings if code != sibling]


def situations_of(group: Ints) -> Ints:
    """Situations of residual groups, in their shape; `untrained` for groups of kernel launches."""
    situation: Ints = np.where(group < _FIRST, S_UNTRAINED, (group - _FIRST) % _SITUATIONS)
    return situation


def of_other_gpus(group: int) -> bool:
    """Whether this residual group is of GPUs without training rows, while others had some."""
    return group >= _FIRST and (group - _FIRST) % _SITUATIONS in OTHER_GPUS


def of_siblings(group: int) -> bool:
    """Whether this residual group is of GPUs without training rows, while a sibling had some."""
    return group >= _FIRST and (group - _FIRST) % _SITUATIONS == S_SIBLING


_BANDS = Coefficients("bands")
_SHARE = _BANDS.by_name("operator_share")
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


def prior_offsets(coverage: float) -> Floats:
    """Return the prior offsets in log space at `coverage`, low and high, float64 [2, groups]."""
    scale = width_at(coverage)
    return np.stack([-scale * PRIOR_HALF_WIDTH, scale * PRIOR_HALF_WIDTH])
