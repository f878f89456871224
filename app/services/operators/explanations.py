"""`detail` of operators: why a predictor answers what it does, in the words and units of the HTTP contract."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from app.predictors.auto.operators.explain import Explanation as Found
from app.predictors.auto.operators.explain import Member
from app.predictors.base import explainer
from app.predictors.intervals.groups import S_UNTRAINED, SITUATIONS
from app.predictors.links import gpu_id_of
from app.services.operators.between_nodes import Asking
from app.tables.predictions import Predictions
from app.wire.prediction_form import (
    Explanation,
    MemberAnswer,
    NetworkParts,
    PhysicsTerms,
    RooflinePosition,
    TileUse,
)

_UNTRAINED = SITUATIONS[S_UNTRAINED]


def explanations(asking: Asking, target: int, answer: Predictions) -> Sequence[Explanation | UnsetType]:
    """Of every row asked on GPU row `target`, as `answered_on` answered; predictors that do not explain have none."""
    served = asking.engine.serving(asking.predictor, asking.gpus.ids[target]).predictor
    if not explainer(served):
        return [UNSET] * len(asking.said)
    asked = asking.made_of(answer, target)
    told = [_worded(found) for found in served.explained(asked.ops, asking.gpus, target, asked.answer)]
    seconds = np.stack([*(part[:, 0] for part in asked.across), answer.limit_s[asked.several]], axis=1)
    for q, nodes, times in zip(asked.several.tolist(), asked.nodes.tolist(), seconds.tolist(), strict=True):
        told[q] = _over_nodes(told[q], int(nodes), times)
    return told


def _over_nodes(node: Explanation, nodes: int, seconds: Sequence[float]) -> Explanation:
    """Of a collective over several nodes: `node` is of one node's part, `seconds` of all parts and the limit."""
    inside, adapters, hops, limit = seconds
    bound: Literal["node", "network", "limit"] = "node" if inside > adapters else "network"
    if limit > max(inside, adapters) + hops:
        bound = "limit"
    network = NetworkParts(nodes, inside * 1e3, adapters * 1e3, hops * 1e3, limit * 1e3, bound)
    if inside > 0.0:
        return replace(node, network=network)
    return replace(
        node,
        situation=_UNTRAINED,
        learned_dtype=None,
        roofline=replace(node.roofline, compute_share=None, dram_share=None),
        physics=PhysicsTerms(*(0.0 for _ in PhysicsTerms.__struct_fields__)),
        members=[],
        network=network,
    )


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
        network=None,
    )


def _member(member: Member) -> MemberAnswer:
    source, gpu, weight, log_correction, latency_s = member
    return MemberAnswer(source, None if gpu is None else gpu_id_of(gpu), weight, log_correction, latency_s * 1e3)  # type: ignore[arg-type]


def _known(figure: float) -> float | None:
    return figure if np.isfinite(figure) else None
