"""Uploads that teach of other answers: which count, and which of them are nearest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from app.bands.error_model import ErrorModel, Levels
from app.coefficients import Coefficients

# A greater error needs a second upload that agrees with it.
_UNCONFIRMED, _AGREEING = (Coefficients("bands").number(name) for name in ("unconfirmed_shift", "agreeing_shift"))
# Most uploads that teach of an answer.
NEAREST = 8


class Upload(NamedTuple):
    """What an upload brought: its id (None of an import), levels, and ln(measured / predicted)."""

    upload: int | None
    levels: Levels
    error: float


def confirmed(uploads: Sequence[Upload]) -> list[tuple[Levels, float]]:
    """Return levels and errors of those that count: imports, small errors, and errors that two agree on."""
    return [
        (one.levels, one.error)
        for one in uploads
        if one.upload is None
        or abs(one.error) <= _UNCONFIRMED
        or any(other.upload != one.upload and abs(one.error - other.error) <= _AGREEING for other in uploads)
    ]


def nearest(errors: ErrorModel, levels: Levels, uploaded: Sequence[Levels]) -> list[int]:
    """Return the places of those of greatest covariance with an answer of these levels, the nearest first."""
    own = levels.of_components()
    shared = [sum(errors.v[[a == b for a, b in zip(own, of.of_components(), strict=True)]]) for of in uploaded]
    order: list[int] = np.argsort(-np.array(shared), kind="stable")[:NEAREST].tolist()
    return order
