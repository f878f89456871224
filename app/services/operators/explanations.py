"""`detail` of operators: why `auto` answers what it does, in the words and units of the HTTP contract."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import UNSET, UnsetType

from app.predictors.auto import Auto
from app.predictors.links import named
from app.predictors.operators.explain import Explanation as Found
from app.predictors.operators.explain import Member, explained
from app.services.engine import Served
from app.services.prediction_form import Explanation, MemberAnswer, PhysicsTerms, RooflinePosition, TileUse
from app.tables.gpus import GpuTable
from app.tables.ops import OpTable
from app.tables.predictions import Predictions


def explanations(
    served: Served, ops: OpTable, gpus: GpuTable, target: int, answer: Predictions
) -> Sequence[Explanation | UnsetType]:
    """Of every row of `ops` on GPU row `target`; other predictors than `auto` have none."""
    if not isinstance(served.predictor, Auto):
        return [UNSET] * len(ops)
    return [_worded(found) for found in explained(served.predictor.operators_, ops, gpus, target, answer)]


def _worded(found: Found) -> Explanation:
    tile = found.tile
    return Explanation(
        situation=found.situation,
        learned_dtype=found.learned,
        sustained_clock_hz=_known(found.clock_hz),
        roofline=RooflinePosition(*(_known(figure) for figure in found.roof)),
        tile=None if tile is None else TileUse(*tile),
        physics=PhysicsTerms(*(seconds * 1e3 for seconds in found.physics)),
        members=[_member(member) for member in found.members],
        fading=found.fading,
        corrects="time" if found.whole else "work",
    )


def _member(member: Member) -> MemberAnswer:
    source, gpu, weight, log_correction, latency_s = member
    return MemberAnswer(source, None if gpu is None else named(gpu), weight, log_correction, latency_s * 1e3)  # type: ignore[arg-type]


def _known(figure: float) -> float | None:
    return figure if np.isfinite(figure) else None
